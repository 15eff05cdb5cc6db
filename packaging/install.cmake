# cmake --install: where everything goes. DESTDIR and CMAKE_INSTALL_PREFIX are honoured; what the programs know by its full
# path (the configuration, /etc/tiletrack) stays there. core/install.c finds the rest relative to the running program.
include(GNUInstallDirs)
set(TT_UNIT_DIR ${CMAKE_INSTALL_PREFIX}/lib/systemd/system CACHE PATH "Where systemd's units are installed")
set(TT_CUDA_PLUGIN "" CACHE FILEPATH "A tiletrack-cuda.so that was built elsewhere, to be installed instead of one built here")

set(private lib/tiletrack)
install(TARGETS tiletrack RUNTIME DESTINATION bin)
install(TARGETS tiletrackd RUNTIME DESTINATION sbin)
install(TARGETS tiletrack-worker tiletrack-decode tiletrack-encode RUNTIME DESTINATION ${private})
if(TARGET tiletrack-cuda)
  install(TARGETS tiletrack-cuda LIBRARY DESTINATION ${private} COMPONENT cuda)
elseif(TT_CUDA_PLUGIN)
  install(FILES ${TT_CUDA_PLUGIN} DESTINATION ${private} RENAME tiletrack-cuda.so COMPONENT cuda)
endif()

install(FILES models/tiletrack-small.safetensors models/CARD.md DESTINATION share/tiletrack/models)
install(FILES config/tiletrack.yaml DESTINATION /etc/tiletrack)
install(FILES packaging/logrotate/tiletrack DESTINATION /etc/logrotate.d)
install(FILES packaging/completions/tiletrack DESTINATION share/bash-completion/completions)

# The service: units, its user, its directories, what runs before it.
install(FILES systemd/tiletrackd.service systemd/tiletrack-devices.service DESTINATION ${TT_UNIT_DIR})
install(FILES packaging/sysusers/tiletrack.conf DESTINATION lib/sysusers.d)
install(FILES packaging/tmpfiles/tiletrack.conf DESTINATION lib/tmpfiles.d)
install(PROGRAMS systemd/tiletrack-devices DESTINATION ${private})

# Manual pages: those that are written and the one that is made from the table of options.
foreach(section 1 5 7 8)
  file(GLOB pages CONFIGURE_DEPENDS docs/man/*.${section})
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
install(FILES ${CMAKE_BINARY_DIR}/man/tiletrack.yaml.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
