#!/bin/sh
# Prints the path of Debian's MariaDB server, after installing its package by apt when it is missing. The package
# mariadb-server-core holds the programs alone: it brings no service, makes no database and starts nothing. Tests run
# the server on a folder of their own (tests/support/mysql_server.py). Standard output holds that one line; all else
# goes to stderr.
set -eu

server() {
    [ -x /usr/sbin/mariadbd ] && echo /usr/sbin/mariadbd
}

stop_with() {
    echo "debian_mariadb.sh: $1" >&2
    exit 1
}

server && exit 0

# Several may ask at once, and apt serves one: the others find the server there when it is their turn.
exec 9>"${TMPDIR:-/tmp}/penstock-debian-mariadb.lock"
flock 9
server && exit 0

command -v apt-get >/dev/null || stop_with "no apt-get here: install MariaDB's server as /usr/sbin/mariadbd by hand"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
        stop_with "apt needs root: run 'apt-get install mariadb-server-core' as root, then this again"
    as_root="sudo -n"
fi

export DEBIAN_FRONTEND=noninteractive
install="$as_root apt-get install --yes --quiet --no-install-recommends mariadb-server-core"
$install >&2 || { $as_root apt-get update --quiet >&2 && $install >&2; } ||
    stop_with "apt could not install the package mariadb-server-core: its message is above"

server || stop_with "the package mariadb-server-core is installed, but its programs are not where they should be"
