/* core/install.h: where the product's own files lie, seen from the running program.
 *
 * In the build tree the programs are in build/bin and the weights in models/; installed, PREFIX/bin (or
 * libexec) has PREFIX/lib/tiletrack and PREFIX/share/tiletrack beside it. Nothing is read from the
 * environment.
 */
#ifndef TT_CORE_INSTALL_H
#define TT_CORE_INSTALL_H

#include "core/status.h"

#include <stddef.h>

/* A program of ours (such as "tiletrack-decode") beside the running one or in PREFIX/lib/tiletrack. */
enum tt_status tt_install_program(char *path, size_t bytes, const char *name, struct tt_error *err);

/* A plug-in (such as "tiletrack-cuda.so"). */
enum tt_status tt_install_plugin(char *path, size_t bytes, const char *name, struct tt_error *err);

/* Weights: `model` is a path if it holds a slash or ends in .safetensors; otherwise the name of an installed
 * model
 * ("tiletrack-small"). The text names the places that were searched. */
enum tt_status tt_install_model(char *path, size_t bytes, const char *model, struct tt_error *err);

#endif
