#!/bin/sh
# Prints the path of Chromium, after installing Debian's package by apt when there is none. For the browser tests.
# Standard output holds that one line; all else goes to stderr.
set -eu

command -v chromium && exit 0

stop_with() {
    echo "debian_chromium.sh: $1" >&2
    exit 1
}

# Several may ask at once, and apt serves one: the others find it there when it is their turn.
exec 9>"${TMPDIR:-/tmp}/penstock-debian-chromium.lock"
flock 9
command -v chromium && exit 0

command -v apt-get >/dev/null || stop_with "no apt-get here: install chromium by hand"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || stop_with "apt needs root: run 'apt-get install chromium' as root, then this again"
    as_root="sudo -n"
fi
export DEBIAN_FRONTEND=noninteractive
install="$as_root apt-get install --yes --quiet --no-install-recommends chromium"
$install >&2 || { $as_root apt-get update --quiet >&2 && $install >&2; } ||
    stop_with "apt could not install the package chromium: its message is above"
command -v chromium || stop_with "the package chromium is installed, but not on the path"
