#!/bin/sh
# Prints the path of promtool, Prometheus' own linter, after taking it out of Debian's package prometheus when there is
# none. The package is only unpacked, into the cache of this user: it brings no service and needs no root. For the tests
# of metrics and alerts. Standard output holds that one line; all else goes to stderr.
set -eu

kept="${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests"

found() {
    command -v promtool || { [ -x "$kept/promtool" ] && echo "$kept/promtool"; }
}

stop_with() {
    echo "debian_promtool.sh: $1" >&2
    exit 1
}

found && exit 0

# Several may ask at once: the others find it there when it is their turn.
mkdir -p "$kept"
exec 9>"$kept/promtool.lock"
flock 9
found && exit 0

command -v apt-get >/dev/null || stop_with "no apt-get here: put promtool on the path by hand"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cd "$made"
chmod 755 . # apt's own user writes here
as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo -n"
apt-get download --quiet prometheus >&2 || { $as_root apt-get update --quiet >&2 && apt-get download --quiet prometheus >&2; } ||
    stop_with "apt could not download the package prometheus: its message is above"
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
mv usr/bin/promtool "$kept/promtool"
found || stop_with "the package prometheus has no promtool where it should be"
