# packaging/common.sh: what packaging/demo and packaging/test share. Sourced by bash from the repository root.
#
# Functions: say TEXT (one step, with the seconds since the start), install_missing PACKAGE..., unpack_program PACKAGE
# PATH DIR, build_tree DIR "TARGET ..." CMAKE-ARGUMENT... . Nothing here asks a question or reads standard input.

# To build and run the programs (Debian 12). cmocka belongs here because the one CMake project configures its tests too.
packages_build="gcc libc6-dev cmake ninja-build pkg-config libavformat-dev libavcodec-dev libavutil-dev libswscale-dev
    libseccomp-dev libopenblas-dev libzip-dev libjansson-dev libsqlite3-dev libyaml-dev libuv1-dev libsystemd-dev libcmocka-dev"
# To measure and draw the demo clip's tracks.
packages_demo="ffmpeg python3 python3-numpy python3-pil"
# To run every test: a second compiler and its formatter, a tracer, a file system with quotas, a journal, readers of
# manual pages and of JSON, the baseline (Lucas-Kanade), the library that writes real checkpoints; what makes Debian packages
# and a machine that boots with them.
packages_test="clang clang-format libclang-rt-14-dev binutils strace btrfs-progs systemd mandoc jq python3-opencv
    python3-torch debhelper dpkg-dev fakeroot lintian debootstrap systemd-container"

say()
{
    printf '\n== %s (%d s)\n' "$*" "$SECONDS"
}

# install_missing PACKAGE...: asks dpkg first, so that a second run touches neither the network nor root's rights.
install_missing()
{
    local package missing=() root=()
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    if [ ${#missing[@]} = 0 ]; then
        echo "all of $# packages are installed"
        return
    fi
    echo "missing: ${missing[*]}"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || {
            echo "run this as root, or install sudo, or install the packages named above" >&2
            return 1
        }
        root=(sudo)
    fi
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q update </dev/null
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}" \
        </dev/null
}

# unpack_program PACKAGE PATH DIR: one program of a package that is not installed, because that would start a server.
# Puts it into DIR; where it is on the PATH or in DIR already nothing is downloaded.
unpack_program()
{
    local package=$1 path=$2 tree=$3 name=${2##*/}

    if command -v "$name" >/dev/null || [ -x "$tree/$name" ]; then
        echo "$name is there"
        return
    fi
    mkdir -p "$tree"
    (cd "$tree" && apt-get -q download "$package" </dev/null && dpkg --fsys-tarfile "$package"_*.deb |
        tar -x --to-stdout ".$path" >"$name.part" && chmod 755 "$name.part" && mv "$name.part" "$name" &&
        rm "$package"_*.deb)
}

# build_tree DIR "TARGET ..." CMAKE-ARGUMENT...: configures only what changed, builds only what is old.
build_tree()
{
    local tree=$1 target=$2
    shift 2
    cmake -S . -B "$tree" -G Ninja -Wno-dev "$@"
    # shellcheck disable=SC2086 # a list of words
    cmake --build "$tree" -j "$jobs" --target $target
}

jobs=$(nproc)
