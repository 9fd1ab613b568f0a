"""Acts of whoever administers the source: publications, types, names, partitions, roles, locks, the server itself."""

from __future__ import annotations

import shutil
import time

import psycopg

from people.rows import traffic
from people.world import FUZZED, World

SETTINGS = (
    ("quote_all_identifiers", "on"),
    ("client_min_messages", "debug1"),
    ("lock_timeout", "1s"),
    ("default_transaction_read_only", "on"),
    ("datestyle", "SQL, DMY"),
    ("timezone", "Asia/Tokyo"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "-3"),
    ("search_path", "elsewhere"),
    ("intervalstyle", "iso_8601"),
    ("xmloption", "document"),
    ("default_transaction_isolation", "serializable"),
    ("statement_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "1s"),
)


def _some_table(world: World) -> str:
    return world.random.choice((*FUZZED, "labels", "large", "parted"))


def _rows(world: World) -> None:
    """Something happens meanwhile."""
    for _ in range(world.random.randint(1, 3)):
        traffic(world)
        world.fuzzers[world.random.choice(FUZZED)].try_update(world.connection)


def _wait(world: World) -> None:
    """Sometimes long enough for a look at the catalogue, sometimes not."""
    time.sleep(world.random.choice((0.0, 0.0, 0.2, 1.5)))


def _two_columns(world: World) -> tuple[str, str, str] | None:
    """A table of the fuzzer, and two of its columns that are not its key; None when it has fewer."""
    table = world.random.choice(FUZZED)
    names = [name for name, _ in world.fuzzers[table].other_columns(world.connection)]
    if len(names) < 2:
        return None
    first, second = world.random.sample(names, 2)
    return table, first, second


def _swap(table: str, first: str, second: str) -> tuple[str, ...]:
    """Statements by which two columns swap their names."""
    renames = ((first, "between"), (second, first), ("between", second))
    return tuple(f'alter table {table} rename "{before}" to "{after}"' for before, after in renames)


def drop_from_publication(world: World) -> None:
    """A table leaves the publication, changes, and comes back, or is left for penstock to find."""
    table = _some_table(world)
    if not world.sql(f"alter publication {world.publication} drop table only {table}"):
        return
    _rows(world)
    _wait(world)
    if world.random.random() < 0.5:
        world.sql(f"alter publication {world.publication} add table only {table}")


def set_publication(world: World) -> None:
    """The publication is set to fewer tables, and later to all."""
    listed = world.connection.execute(
        "select format('%%I.%%I', n.nspname, c.relname) from pg_publication p join pg_publication_rel r "
        "on r.prpubid = p.oid join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace "
        "where pubname = %s order by 1",
        (world.publication,),
    ).fetchall()
    names = [name for (name,) in listed]
    if len(names) < 3:
        return
    fewer = ", ".join(f"only {name}" for name in names if name == "public.control" or world.random.random() < 0.6)
    if world.sql(f"alter publication {world.publication} set table {fewer}"):
        _rows(world)
        _wait(world)
        if world.random.random() < 0.5:
            world.sql(f"alter publication {world.publication} set table {', '.join(f'only {name}' for name in names)}")


def publish_less(world: World) -> None:
    """Some operations are not published for a while."""
    world.sql(f"alter publication {world.publication} set (publish = 'insert, truncate')")
    _rows(world)
    _wait(world)
    world.sql(f"alter publication {world.publication} set (publish = 'insert, update, delete, truncate')")


def filter_publication(world: World) -> None:
    """A row filter comes for a while."""
    table = world.random.choice(("large", "parted"))
    drop = f"alter publication {world.publication} drop table only {table}"
    if world.sql(drop, f"alter publication {world.publication} add table only {table} where (id % 2 = 0)"):
        _rows(world)
        _wait(world)
        world.sql(drop, f"alter publication {world.publication} add table only {table}")


def move_schema(world: World) -> None:
    """A table is in another schema for a while."""
    table = _some_table(world)
    if world.sql(f"alter table {table} set schema elsewhere"):
        world.sql(f"delete from elsewhere.{table} where ctid in (select ctid from elsewhere.{table} limit 1)")
        _wait(world)
        world.sql(f"alter table elsewhere.{table} set schema public")


def rename_label(world: World) -> None:
    (labels,) = world.connection.execute("select enum_range(null::mood)::text[]").fetchone() or ([],)
    label = world.random.choice(labels)
    world.sql(f"alter type mood rename value '{label}' to 'm{world.random.randint(1, 10**9)}'")
    if world.random.random() < 0.5:
        world.sql("update labels set notes = 'after' where id % 2 = 0")


def alter_composite(world: World) -> None:
    world.sql(f"alter type place add attribute a{world.random.randint(1, 10**6)} int cascade")


def identity(world: World) -> None:
    table = world.random.choice(("labels", "large", "parted", "whole", "loose"))
    if table in ("whole", "loose"):
        choice = world.random.choice(("full", "default", "full"))
        # Without an identity the application's own updates must go on working.
        world.sql(f"alter table {table} replica identity {choice}")
    else:
        world.sql(f"alter table {table} replica identity {world.random.choice(('full', 'default'))}")


def detach_and_attach(world: World) -> None:
    """A partition goes, changes or is emptied, and comes back."""
    kind = world.random.randint(0, 2)
    if not world.sql(f"alter table parted detach partition parted_{kind}"):
        return
    change = world.random.choice(
        ("truncate parted_{0}", "delete from parted_{0}", "update parted_{0} set note = 'away'", "")
    )
    if change:
        world.sql(change.format(kind))
    _wait(world)
    world.sql(f"alter table parted attach partition parted_{kind} for values in ({kind})")


def replace_partition(world: World) -> None:
    """A partition is dropped and made again; and another one comes and goes, so that perhaps no look sees it."""
    kind = world.random.randint(0, 2)
    world.sql(f"drop table if exists parted_{kind}")
    world.sql(f"create table parted_{kind} partition of parted for values in ({kind})")
    world.sql("create table parted_passing partition of parted for values in (9)")
    world.sql("insert into parted values (9, 9, 'passing')")
    world.sql("drop table if exists parted_passing")


def truncate_partition(world: World) -> None:
    world.sql(f"truncate parted_{world.random.randint(0, 2)}")


def detach_deep(world: World) -> None:
    """A partition of a partition goes, loses rows, and comes back; or the one in the middle is truncated."""
    if world.random.random() < 0.3:
        world.sql("truncate parted_deep")
        return
    side, values = world.random.choice(
        (("low", "from (minvalue) to (5000)"), ("high", "from (5000) to (maxvalue)")),
    )
    if world.sql(f"alter table parted_deep detach partition parted_{side}"):
        world.sql(f"delete from parted_{side} where id % 2 = 0")
        _wait(world)
        world.sql(f"alter table parted_deep attach partition parted_{side} for values {values}")


def rewrite_untouched(world: World) -> None:
    """A table's rows are rewritten, and nobody touches it afterwards."""
    world.sql(
        world.random.choice(
            (
                "alter table large alter small type bigint using small + 1",
                "alter table large alter small type int using small - 1",
                f"alter table large add s{world.random.randint(1, 10**6)} serial",
                f"alter table large add d{world.random.randint(1, 10**6)} text default 'there'",
                "vacuum full large",
            )
        )
    )


def swap_while_older_writes(world: World) -> None:
    """An older transaction writes after a younger one has swapped two columns."""
    swapped = _two_columns(world)
    if swapped is None:
        return
    table, first, second = swapped
    with psycopg.connect(world.database.url) as older:
        older.execute("select pg_current_xact_id()")
        done = world.sql(
            "begin",
            *_swap(table, first, second),
            "commit",
        )
        if done:
            try:
                world.fuzzers[table].insert(older)
                older.commit()
                world.say(f"-- an older transaction inserted into {table}")
            except psycopg.Error as refused:
                older.rollback()
                world.say(f"-- the older transaction was refused: {type(refused).__name__}")


def swap_in_savepoint(world: World) -> None:
    swapped = _two_columns(world)
    if swapped is None:
        return
    table, first, second = swapped
    world.sql(
        "begin",
        "savepoint s",
        *_swap(table, first, second),
        "release savepoint s",
        f'update {table} set "{first}" = "{first}"',
        "commit",
    )


def swap_without_triggers(world: World) -> None:
    """A session that fires no triggers swaps two columns."""
    swapped = _two_columns(world)
    if swapped is None:
        return
    table, first, second = swapped
    world.sql("set session_replication_role = replica")
    world.sql(
        "begin",
        *_swap(table, first, second),
        "commit",
    )
    world.sql("set session_replication_role = origin")
    _rows(world)


def replace_last_column(world: World) -> None:
    """The last column goes, and another of its name and type comes."""
    table = world.random.choice(FUZZED)
    columns = world.fuzzers[table].other_columns(world.connection)
    name, type = columns[-1]
    world.sql(
        "begin",
        f'alter table {table} drop "{name}"',
        f'alter table {table} add "{name}" {type}',
        "commit",
    )
    _rows(world)


def hold_lock(world: World) -> None:
    """Somebody holds a table, or a partition, for a while."""
    table = world.random.choice((*FUZZED, "parted_1", "large"))
    try:
        with psycopg.connect(world.database.url) as holder:
            holder.execute("set lock_timeout = '2s'")
            holder.execute(f"lock table {table} in access exclusive mode".encode())
            world.say(f"-- {table} is locked")
            time.sleep(world.random.choice((1.0, 4.0)))
    except psycopg.Error as refused:
        world.say(f"-- lock of {table}: {type(refused).__name__}")


def role_settings(world: World) -> None:
    """The pipeline's role gets settings of its own, or loses them all; its sessions begin again."""
    name, value = world.random.choice(SETTINGS)
    with psycopg.connect(world.server.url(), autocommit=True) as other:
        other.execute("alter role pipeline reset all")
        if world.random.random() < 0.8:
            other.execute(f"alter role pipeline set {name} = '{value}'".encode())
            world.say(f"alter role pipeline set {name} = '{value}'")
        if world.random.random() < 0.5:
            other.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'pipeline'")
            world.say("-- the pipeline's sessions were ended")


def strange_message(world: World) -> None:
    """A role without rights writes messages that look like ours."""
    content = world.random.choice(
        (
            "",
            "x",
            "[]",
            '{"relation": 1}',
            '{"removed": true}',
            '{"unknown": 99999999999999999999}',
            '{"relation": %s, "columns": [["id", 23, -1, 2, null, false], ["a", 25, -1, 1, null, false]], '
            '"key": ["id"], "storage": 1, "plain": true, "stamps": ["1:1"]}',
        )
    )
    if "%s" in content:
        row = world.connection.execute("select 'f0'::regclass::oid::int").fetchone()
        content = content.replace("%s", str(row[0] if row else 0))
    url = world.server.url(world.database.url.rpartition("/")[2], user="stranger")
    with psycopg.connect(url, autocommit=True) as stranger:
        stranger.execute("select pg_logical_emit_message(true, 'penstock', %s)", (content,))
    world.say(f"-- a stranger's message: {content}")
    world.fuzzers["f0"].try_insert(world.connection)


def crash(world: World) -> None:
    world.say("-- the server crashes")
    with world.server_away("immediate"):
        pass


def take_image(world: World) -> None:
    """The server's disk is copied, to be put back later."""
    world.say("-- the server's disk is copied")
    with world.server_away():
        if world.image is not None:
            shutil.rmtree(world.image)
        world.image = world.server.folder / "image"
        shutil.copytree(world.server.data, world.image, symlinks=True)
        _hand_over(world)


def _hand_over(world: World) -> None:
    """The server's user owns its files again."""
    owner = world.server.folder.stat()
    for path in (world.server.data, *world.server.data.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


def put_back(world: World) -> None:
    """The server is put back to an earlier image of its disk, and goes on from there."""
    if world.image is None:
        return
    world.say("-- the server is put back to an earlier image")
    if world.random.random() < 0.5:
        world.stop()
    world.pulse.unwatch()
    with world.server_away():
        shutil.rmtree(world.server.data)
        world.image.rename(world.server.data)
        world.image = None
        _hand_over(world)
    world.pulse.unwatch()
    for _ in range(world.random.choice((0, 40))):
        traffic(world)
