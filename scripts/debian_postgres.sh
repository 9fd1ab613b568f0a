#!/bin/sh
# Prints the folder of Debian's PostgreSQL server binaries, after installing the package by apt when they are missing.
# It makes and starts no cluster and touches none that is there: tests run the binaries on a folder of their own
# (penstock.demo.server.PostgresServer(binaries=...)). Standard output holds that one line; all else goes to stderr.
set -eu

newest_binaries() {
    for folder in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -t/ -k5 -rn); do
        if [ -x "$folder/postgres" ] && [ -x "$folder/initdb" ] && [ -x "$folder/pg_ctl" ]; then
            echo "$folder"
            return 0
        fi
    done
    return 1
}

stop_with() {
    echo "debian_postgres.sh: $1" >&2
    exit 1
}

newest_binaries && exit 0

# Several may ask at once, and apt serves one: the others find the binaries there when it is their turn.
exec 9>"${TMPDIR:-/tmp}/penstock-debian-postgres.lock"
flock 9
newest_binaries && exit 0

command -v apt-get >/dev/null || stop_with "no apt-get here: install a PostgreSQL server below /usr/lib/postgresql by hand"
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || stop_with "apt needs root: run 'apt-get install postgresql' as root, then this again"
    as_root="sudo -n"
fi

# Unless told otherwise the package makes and starts a cluster called main. The setting is ours for the installation only.
settings=/etc/postgresql-common/createcluster.conf
if [ -e "$settings" ]; then
    kept=$(mktemp)
    cp "$settings" "$kept"
    trap '$as_root cp "$kept" "$settings"; rm -f "$kept"' EXIT
fi
$as_root mkdir -p "$(dirname "$settings")"
echo "create_main_cluster = false" | $as_root tee -a "$settings" >/dev/null

export DEBIAN_FRONTEND=noninteractive
install="$as_root apt-get install --yes --quiet --no-install-recommends postgresql"
$install >&2 || { $as_root apt-get update --quiet >&2 && $install >&2; } ||
    stop_with "apt could not install the package postgresql: its message is above"

newest_binaries || stop_with "the package postgresql is installed, but /usr/lib/postgresql/*/bin holds no server"
