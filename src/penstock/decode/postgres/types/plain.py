"""Types that no lake type holds better than their own text does. See codec.py for the shape of these modules.

A range could be a struct of two bounds and two flags, but then `empty` and unbounded ends need flags of their own, and
no engine has functions for it; its text casts back to the range in any Postgres. The same goes for geometry, and for
money, whose text says its currency while its number depends on the server's locale.
"""

from __future__ import annotations

from penstock.decode.postgres.types.text import as_sent

SERVED = (
    as_sent(("bit", 1560), ("varbit", 1562), exact="its digits 0 and 1, in number and order"),
    as_sent(("inet", 869), ("cidr", 650), ("macaddr", 829), ("macaddr8", 774)),
    as_sent(("money", 790), exact="its text, in the server's lc_monetary"),
    as_sent(
        ("point", 600),
        ("line", 628),
        ("lseg", 601),
        ("box", 603),
        ("path", 602),
        ("polygon", 604),
        ("circle", 718),
        exact="its text, with every digit of its numbers",
    ),
    as_sent(
        ("int4range", 3904),
        ("int8range", 3926),
        ("numrange", 3906),
        ("tsrange", 3908),
        ("tstzrange", 3910),
        ("daterange", 3912),
    ),
    as_sent(
        ("int4multirange", 4451),
        ("int8multirange", 4536),
        ("nummultirange", 4532),
        ("tsmultirange", 4533),
        ("tstzmultirange", 4534),
        ("datemultirange", 4535),
    ),
    as_sent(("xml", 142), exact="its text, character for character"),
    as_sent(("tsvector", 3614), ("tsquery", 3615), ("gtsvector", 3642)),
    as_sent(("pg_lsn", 3220), ("xid8", 5069), ("tid", 27), ("pg_snapshot", 5038), ("txid_snapshot", 2970)),
    as_sent(
        ("regclass", 2205),
        ("regcollation", 4191),
        ("regconfig", 3734),
        ("regdictionary", 3769),
        ("regnamespace", 4089),
        ("regoper", 2203),
        ("regoperator", 2204),
        ("regproc", 24),
        ("regprocedure", 2202),
        ("regrole", 4096),
        ("regtype", 2206),
        exact="its text: the name that the object had when the value was sent",
    ),
    as_sent(("oidvector", 30), ("int2vector", 22), ("aclitem", 1033), ("refcursor", 1790)),
    as_sent(
        ("pg_node_tree", 194),
        ("pg_ndistinct", 3361),
        ("pg_dependencies", 3402),
        ("pg_mcv_list", 5017),
        ("pg_brin_bloom_summary", 4600),
        ("pg_brin_minmax_multi_summary", 4601),
    ),
)
