# SPDX-License-Identifier: Apache-2.0
"""The tables and charts of docs/performance.md, all of which are generated from the files in benchmarks/results.

Usage: python tools/draw_performance.py [--check]      --check: write nothing, fail if a chart is stale

tools/draw_docs.py puts the tables into the pages. A table whose file of results does not exist contains the command
that measures it. The charts are SVG files in docs/images, readable on light and on dark pages, with the value next to
each bar.
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
CODECS = ("none", "lz4", "zstd", "gzip", "snappy")
SHAPES = {
    "a": "100 B values, 10 B keys; 1,000 records in a batch",
    "b": "1 KiB values; 500 records in a batch",
    "c": "20 B values, 8 B keys, 3 headers; 1,000 records in a batch",
    "d": "30 B values, 6 B keys; 10 records in a batch",
    "k": "100 B values with keys, sent to a broker",
}
#: The files of results that the page uses.
FILES = (
    *("kcodec", "peers", "send", "producer", "many-partitions", "consumer", "transactions", "session", "import"),
    *("compat", "topics", "spark-sink", "spark", "cli", "seek", "messages", "facade", "facade-aiokafka"),
)
#: A row of a file that has no rounds is busy above this number of cores of other processes.
BUSY_CORES = 0.5
Row = dict[str, Any]


@cache
def result(name: str) -> Row:
    """Return one file of results; empty if it was not measured yet."""
    path = RESULTS / f"{name}.json"
    loaded: Row = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return loaded


def rows_of(name: str, part: str) -> list[Row]:
    """Return the rows of one part of a file of results; empty if it was not measured yet."""
    found: list[Row] = result(name).get("parts", {}).get(part, [])
    return found


def not_measured(command: str) -> str:
    """Return the text that replaces a table without results."""
    return f'Not measured yet. This command measures it: `make bench ARGS="--part {command}"`\n'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def figure(value: float) -> str:
    """Return a measured value with three significant digits, or two if it is small."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{digits}f}"


def ratio(value: float) -> str:
    """Return how many times one value is another."""
    return f"{value:.1f} ×" if value >= 2 else f"{value:.2f} ×"


def by_key(rows: Iterable[Row], **wanted: str) -> dict[tuple[str, str], Row]:
    """Return the rows of one kind by codec and shape."""
    return {
        (row["codec"], row["shape"]): row for row in rows if all(row.get(key) == value for key, value in wanted.items())
    }


def cases(rows: dict[tuple[str, str], Row]) -> list[tuple[str, str]]:
    """Return the codecs and shapes of rows, in the order of the documentation."""
    return [(codec, shape) for codec in CODECS for shape in "abcd" if (codec, shape) in rows]


def draw_shapes() -> str:
    """Return a table that describes the shapes of records."""
    return table(("shape", "records"), SHAPES.items())


def draw_conditions() -> str:
    """Return where and when each file of results was measured, and how busy the machine was."""
    rows = []
    for name in FILES:
        found = result(name)
        if not found:
            continue
        measured = list(found.get("measured", {}).values()) or [found]
        dates = sorted({one["date"] for one in measured})
        commits = sorted({one["commit"] for one in measured if one.get("commit")})
        machine = found.get("machine", {})
        known = [f"{machine['cores']} cores" if "cores" in machine else "", machine.get("cpu", "")]
        known.append(f"Python {machine['python']}" if "python" in machine else "")
        date = dates[0] if len(dates) < 2 else f"{dates[0]} to {dates[-1]}"
        link = f"[{name}.json](../benchmarks/results/{name}.json)"
        rows.append((link, date, ", ".join(commits), ", ".join(filter(None, known)), load_of(found)))
    return table(("file of results", "date", "commit", "machine", "other processes"), rows)


def load_of(found: Row) -> str:
    """Return how many rows of a file were measured while other processes used the machine."""
    rows = [row for part in found["parts"].values() for row in (part if isinstance(part, list) else [part])]
    known = [row for row in rows if row.get("others") is not None]
    if not known:
        return "not recorded"
    busy = sum(is_busy(row) for row in known)
    return f"busy in {busy} of {len(known)} rows" if busy else "quiet"


def is_busy(row: Row) -> bool:
    """Return whether other processes used the machine in most rounds of a row."""
    if row.get("busy_rounds") is not None:
        return bool(2 * row["busy_rounds"] > row["rounds"])
    return bool(row.get("is_busy", (row.get("others") or 0.0) > BUSY_CORES))


def value_cell(row: Row) -> str:
    """Return a ratio or another value of a comparison with its interval, marked if the machine was busy."""
    interval = "" if row["low"] is None else f" ({figure(row['low'])} to {figure(row['high'])})"
    return f"{figure(row['value'])}{interval}{', busy' if is_busy(row) else ''}"


def bar_cell(row: Row | None) -> str:
    """Return the bar of a comparison and whether it is met."""
    if row is None or "bar" not in row:
        return ""
    return f"{'≥' if row['bar_is'] == 'at least' else '≤'} {row['bar']:.3g}: {row['verdict']}"


def comparisons(rows: list[Row], main: str, unit: str, more: dict[str, str] | None = None) -> str:
    """Return a table of comparisons: the medians of the figure `main`, its ratio, and the ratios of other figures.

    `more` maps the names of other figures to the headings of their columns.
    """
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["first"], row["second"] or ""), {})[row["figure"]] = row
    lines = []
    for (case, first, second), group in groups.items():
        row = group[main]
        medians = [figure(row["medians"][name]) if name else "" for name in (first, second)]
        others = [value_cell(group[name]) if name in group else "" for name in more or ()]
        compared = f"{first} / {second}" if second else first
        lines.append((case, compared, *medians, value_cell(row), bar_cell(row), *others))
    heads = ("case", "first / second", f"first, {unit}", f"second, {unit}", "first / second, interval", "bar")
    return table((*heads, *(more or {}).values()), lines)


def drawn(name: str, parts: dict[str, tuple[str, str]], command: str, more: dict[str, str] | None = None) -> str:
    """Return the tables of comparisons of some parts of a file: part -> (main figure, its unit)."""
    tables = [comparisons(rows, *main, more) for part, main in parts.items() if (rows := rows_of(name, part))]
    return "\n".join(tables) or not_measured(command)


def medians_of(rows: Iterable[Row], main: str) -> dict[tuple[str, str], dict[str, float]]:
    """Return the medians of all clients by codec and shape."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["figure"] == main:
            found.setdefault((row["codec"], row["shape"]), {}).update(row["medians"])
    return found


def ratios_of(rows: Iterable[Row], main: str, first: str, second: str) -> dict[tuple[str, str], Row]:
    """Return the comparison of two clients by codec and shape."""
    wanted = (main, first, second)
    return {(row["codec"], row["shape"]): row for row in rows if (row["figure"], row["first"], row["second"]) == wanted}


def ratio_cell(row: Row, name: str) -> str:
    """Return a ratio of a row with the times of several programs; older results have no interval."""
    interval = row.get(f"{name}_interval")
    older = f"{name}_median"
    value: float = row[older if not interval and older in row else name]
    ends = f" ({figure(interval[0])} to {figure(interval[1])})" if interval else ""
    return f"{figure(value)}{ends}{', busy' if is_busy(row) else ''}"


def draw_decode() -> str:
    """Return the figures of decoding, compared with aiokafka and the C decoder."""
    rows = by_key(result("kcodec")["parts"]["decode"], builder="aiokafka")
    lines = []
    for codec, shape in cases(rows):
        row = rows[codec, shape]
        # The C decoder reads gzip only where libisal is installed: without it, its cells are empty.
        times = [figure(row[one]["median"]) if one in row else "" for one in ("kcodec", "aiokafka", "floor")]
        ratios = [ratio_cell(row, name) if name in row else "" for name in ("times_aiokafka", "over_floor")]
        lines.append((codec, shape, *times, *ratios))
    head = ("codec", "shape", "kcodec", "aiokafka", "C decoder", "aiokafka / kcodec", "kcodec / C decoder")
    return table(head, lines)


def draw_threads() -> str:
    """Return how much faster two threads are than one, compared with two threads of the C decoder."""
    rows = [row for row in rows_of("kcodec", "threads") if row["times"] > 1]
    lines = []
    for row in rows:
        times = [figure(row[name]["median"]) for name in ("kcodec 1", "kcodec 2")]
        lines.append((row["codec"], row["shape"], *times, *(ratio_cell(row, name) for name in ("gain", "floor_gain"))))
    head = ("codec", "shape", "one thread, ns", "two threads, ns", "gain of kcodec", "gain of the C decoder")
    return table(head, lines) if rows else not_measured("threads")


def draw_decode_peers() -> str:
    """Return the figures of decoding, compared with the consumers of Java, Go and Rust."""
    rows = by_key(result("peers")["parts"]["peers"], builder="aiokafka")
    names = ("kcodec", "java", "go", "rust")
    lines = [
        (*case, *(figure(rows[case][one]["median"]) if one in rows[case] else "" for one in names))
        for case in cases(rows)
    ]
    return table(("codec", "shape", "kcodec", "Java", "Go (franz-go)", "Rust (kafka-protocol)"), lines)


def draw_encode() -> str:
    """Return the figures of encoding from Arrow and from rows, compared with aiokafka, Java and Rust."""
    own = by_key(result("kcodec")["parts"]["encode"])
    peers = by_key(result("peers")["parts"]["encode"])
    lines = []
    for case in cases(own):
        pairs = [(own[case], one) for one in ("kcodec", "kcodec rows", "aiokafka")]
        pairs += [(peers[case], one) for one in ("java", "rust")] + [(own[case], "floor")]
        lines.append((*case, *(figure(row[one]["median"]) if one in row else "" for row, one in pairs)))
    return table(("codec", "shape", "kcodec, Arrow", "kcodec, rows", "aiokafka", "Java", "Rust", "C encoder"), lines)


def draw_send() -> str:
    """Return the figures of `send` for single records and its latency, compared with confluent-kafka, and of asyncio,
    compared with aiokafka."""
    more = {"elapsed": "elapsed time, ratio", "broker": "processor time of the broker, ratio"}
    text = drawn("send", {"cells": ("cpu", "ns"), "asyncio": ("cpu", "ns")}, "send", more)
    latency = rows_of("send", "latency")
    return text + (f"\n{comparisons(latency, 'p99', 'ms', {'median': 'median, ratio'})}" if latency else "")


def draw_produce() -> str:
    """Return the processor time of producing tables."""
    rows = rows_of("producer", "cpu")
    names = ("kcodec send_arrow", "confluent-kafka", "aiokafka")
    ratios = ratios_of(rows, "cpu", names[0], names[1])
    lines = [
        (*case, *(figure(medians[name]) for name in names), value_cell(ratios[case]))
        for case, medians in medians_of(rows, "cpu").items()
    ]
    heads = ("codec", "shape", "`send_arrow`", *names[1:], "`send_arrow` / confluent-kafka")
    return table(heads, lines) if rows else not_measured("producer")


def draw_consumed(part: str, main: str, heads: tuple[str, str, str]) -> str:
    """Return one part of the results of consuming, with the ratios to both other clients."""
    rows = rows_of("consumer", part)
    names = ("kcodec", "confluent-kafka", "aiokafka")
    ratios = [ratios_of(rows, main, names[0], peer) for peer in names[1:]]
    lines = [
        (*case, *(figure(medians[name]) for name in names), *(value_cell(each[case]) for each in ratios))
        for case, medians in medians_of(rows, main).items()
    ]
    heads_of_ratios = (f"kcodec / {peer}" for peer in names[1:])
    return table(("codec", "shape", *heads, *heads_of_ratios), lines) if rows else not_measured("consumer")


def draw_consume() -> str:
    """Return the processor time of consuming to Arrow."""
    return draw_consumed("arrow", "cpu", ("`poll_arrow`", "confluent-kafka", "aiokafka"))


def draw_poll() -> str:
    """Return the number of records per second that are returned as objects."""
    return draw_consumed("poll", "rate", ("`poll`", "confluent-kafka `consume`", "aiokafka `getmany`"))


def draw_iteration() -> str:
    """Return the figures of a loop over the consumer, compared with a loop over the lists of `poll`."""
    parts = {"iteration": ("rate", "records a second")}
    return drawn("consumer", parts, "consumer", {"cpu": "processor time, ratio"})


def draw_transactions() -> str:
    """Return the transactions per second, and the share of the throughput that remains with frequent commits."""
    parts = {"rate": ("rate", "a second"), "cost": ("share", "share"), "ordinary": ("rate", "records a second")}
    return drawn("transactions", parts, "transactions")


def draw_partitions() -> str:
    """Return the figures of topics with many partitions on a broker that was just started."""
    parts = dict.fromkeys(("send", "poll", "admin"), ("elapsed", "s"))
    more = {"cpu": "processor time, ratio", "broker": "processor time of the broker, ratio"}
    return drawn("many-partitions", parts, "partitions", more)


def draw_import() -> str:
    """Return the processor time of a cold start."""
    return drawn("import", {"import": ("cpu", "ms")}, "import")


def draw_topics() -> str:
    """Return the figures of topics read by Spark, compared with Spark's own connector."""
    more = {"rate": "rows a second, ratio", "broker": "processor time of the broker, ratio"}
    return drawn("topics", {"topics": ("cpu", "ns a row")}, "topics", more)


def draw_sink() -> str:
    """Return the figures of Spark's exactly-once sink, compared with the at-least-once sink."""
    more = {"cpu": "processor time, ratio", "broker": "processor time of the broker, ratio"}
    text = drawn("spark-sink", {"sink": ("rate", "rows a second")}, "sink", more)
    idle = rows_of("spark-sink", "idle")
    return text + (f"\n{comparisons([row for row in idle if row['figure'] == 'both'], 'both', 'ms')}" if idle else "")


def draw_session() -> str:
    """Return how long the end of a transaction takes."""
    found = {name: row for name, row in result("session")["parts"]["commit"].items() if isinstance(row, dict)}
    names = {
        "session, with offsets": "kcodec session, records and offsets",
        "Java, with offsets": "Java producer, records and offsets",
        "session, produce only": "kcodec session, only records",
        "kcodec Producer, produce only": "kcodec producer, only records",
        "Java, produce only": "Java producer, only records",
    }
    lines = [
        (names.get(name, name), f"{row['end']['p50']:.1f}", f"{row['end']['p99']:.1f}") for name, row in found.items()
    ]
    return table(("client and contents of the transaction", "median, ms", "99th percentile, ms"), lines)


def draw_files() -> str:
    """Return the figures measured on segments of 1 GB: memory, seeks, and the command line."""
    lines: list[tuple[str, str]] = []
    for row in result("kcodec")["parts"]["segment"]:
        what = f"peak memory: {row['megabytes']:,} MB streamed to pyarrow, codec {row['codec']}, shape {row['shape']}"
        lines.append((what, f"{row['peak_MB']:.0f} MB"))
    seeks = [row for row in result("seek")["parts"]["seek"] if row["index"] == "with"]
    for by in ("offset", "timestamp"):
        times = [row["median_ms"] for row in seeks if row["by"] == by]
        lines.append(
            (f"time to find a record by {by} with index files", f"{min(times):.2f} to {max(times):.2f} ms (medians)")
        )
    for part in result("cli")["parts"].values():
        for case in part["cases"][:2]:
            lines.append(
                (f"processor time: `{case['case']}`, {part['records']:,} records", f"{case['processor_s']:.1f} s")
            )
    return table(("measurement", "result"), lines)


def draw_spark() -> str:
    """Return how fast Spark reads log files."""
    return drawn("spark", {"spark": ("rate", "rows a second")}, "spark", {"cpu": "processor time, ratio"})


def draw_messages() -> str:
    """Return the times for reading and writing messages of the protocol."""
    lines = []
    for row in result("messages")["parts"]["messages"]:
        others = {name: row[name] for name in ("kafka-python", "aiokafka") if name in row}
        best = min(others.values())
        lines.append(
            (
                f"{row['message']}, version {row['version']}",
                row["way"],
                figure(row["kcodec"]),
                figure(best),
                ratio(best / row["kcodec"]),
            )
        )
    head = ("message", "direction", "kcodec, µs", "fastest other Python client, µs", "other client / kcodec")
    return table(head, lines)


def draw_facade() -> str:
    """Return the processor time of the facade of confluent_kafka, compared with confluent_kafka."""
    return drawn("facade", dict.fromkeys(("produce", "poll"), ("cpu", "ns a record")), "facade")


def draw_facade_aiokafka() -> str:
    """Return the processor time of the facade of aiokafka, compared with aiokafka."""
    return drawn("facade-aiokafka", {"clients": ("cpu", "µs a record")}, "facade-aiokafka")


def draw_compat() -> str:
    """Return how much faster aiokafka and kafka-python are with kcodec inside."""
    names = {
        "read": "decode with the record classes",
        "consume": "decode a fetch response in the consumer",
        "build": "encode with the batch builder",
    }
    rows = rows_of("compat", "compat")
    lines = []
    for client in ("aiokafka", "kafka-python"):
        for part, what in names.items():
            found = by_key(rows, client=client, part=part)
            for codec in ("none", "lz4", "zstd"):
                if (codec, "a") in found:
                    lines.append((client, what, codec, *(value_cell(found[codec, shape]) for shape in "abcd")))
    heads = ("client", "part", "codec", *(f"shape {shape}" for shape in "abcd"))
    return table(heads, lines) if lines else not_measured("compat")


# Charts.

Bars = list[tuple[str, float]]
WIDTH, LABEL, BAR_WIDTH, ROW, HEAD = 720, 190, 400, 22, 34


def chart(title: str, panels: list[tuple[str, Bars]], unit_of: Callable[[float], str]) -> str:
    """Return a chart of horizontal bars as SVG, with one panel below the other and a scale for each. The first bar is
    kcodec's."""
    height = 40 + sum(HEAD + ROW * len(bars) + 10 for _, bars in panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img">',
        f"<title>{html.escape(title)}</title>",
        "<style>text{font:13px sans-serif;fill:#24292f}.h{font-weight:600}.own{fill:#0b6bcb}.other{fill:#9aa5b1}"
        ".page{fill:#ffffff;stroke:#d0d7de}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        f'<text class="h" x="16" y="26" style="font-size:15px">{html.escape(title)}</text>',
    ]
    y = 40
    for heading, bars in panels:
        lines.append(f'<text class="h" x="16" y="{y + 20}">{html.escape(heading)}</text>')
        y += HEAD
        longest = max(value for _, value in bars)
        for position, (name, value) in enumerate(bars):
            width = max(1.5, BAR_WIDTH * value / longest)
            kind = "own" if name.startswith("kcodec") else "other"
            weight = ' class="h"' if position == 0 else ""
            lines.append(f'<text{weight} x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>')
            lines.append(f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="15" rx="2"/>')
            lines.append(f'<text x="{LABEL + width + 6:.1f}" y="{y + 12}">{html.escape(unit_of(value))}</text>')
            y += ROW
        y += 10
    return "\n".join([*lines, "</svg>"]) + "\n"


def speed_chart() -> str:
    """Return the chart of the README: decode, encode, produce and consume records of 100 bytes."""
    decode = by_key(result("kcodec")["parts"]["decode"], builder="aiokafka")["none", "a"]
    peers = by_key(result("peers")["parts"]["peers"], builder="aiokafka")["none", "a"]
    produce = medians_of(rows_of("producer", "cpu"), "cpu")["none", "a"]
    consume = medians_of(rows_of("consumer", "arrow"), "cpu")["none", "a"]
    (sent,) = (
        row["medians"] for row in rows_of("send", "cells") if (row["case"], row["figure"]) == ("100 B none", "cpu")
    )
    panels: list[tuple[str, Bars]] = [
        (
            "Decode to columns, uncompressed",
            [("kcodec", decode["kcodec"]["median"]), ("Java client", peers["java"]["median"])]
            + [(name, decode[name]["median"]) for name in ("aiokafka", "kafka-python")],
        ),
        (
            "Consume from a broker to Arrow",
            [(name, consume[name]) for name in ("kcodec", "confluent-kafka", "aiokafka")],
        ),
        (
            "Produce a table to a broker",
            [(name, produce[name]) for name in ("kcodec send_arrow", "confluent-kafka", "aiokafka")],
        ),
        (
            "Produce record by record to a broker",
            [(f"{name} send" if name == "kcodec" else name, sent[name]) for name in ("kcodec", "confluent-kafka")],
        ),
    ]
    title = "Processor time of one record of 100 bytes, in nanoseconds (shorter is better)"
    return chart(title, panels, lambda value: f"{figure(value)} ns")


def transaction_chart() -> str:
    """Return the chart of the transactions per second of each client."""
    rates = {name: value for row in rows_of("transactions", "rate") for name, value in row["medians"].items()}
    bars = [
        (name.replace("kcodec send", "kcodec"), rates[name]) for name in ("kcodec send", "confluent-kafka", "aiokafka")
    ]
    title = "Transactions a second, one after the other (longer is better)"
    return chart(title, [("100 records over three partitions in each", bars)], lambda value: f"{value:,.0f}")


def codec_chart() -> str:
    """Return the chart of decoding in each codec, compared with aiokafka."""
    rows = by_key(result("kcodec")["parts"]["decode"], builder="aiokafka")
    panels = [
        (f"codec {codec}", [(name, rows[codec, "a"][name]["median"]) for name in ("kcodec", "aiokafka")])
        for codec in CODECS
    ]
    title = "Decode records of 100 bytes to Arrow, in nanoseconds a record (shorter is better)"
    return chart(title, panels, lambda value: f"{figure(value)} ns")


TABLES: dict[str, Callable[[], str]] = {
    "performance-shapes": draw_shapes,
    "performance-conditions": draw_conditions,
    "performance-decode": draw_decode,
    "performance-decode-peers": draw_decode_peers,
    "performance-threads": draw_threads,
    "performance-encode": draw_encode,
    "performance-send": draw_send,
    "performance-produce": draw_produce,
    "performance-partitions": draw_partitions,
    "performance-consume": draw_consume,
    "performance-poll": draw_poll,
    "performance-iteration": draw_iteration,
    "performance-transactions": draw_transactions,
    "performance-session": draw_session,
    "performance-files": draw_files,
    "performance-spark": draw_spark,
    "performance-topics": draw_topics,
    "performance-sink": draw_sink,
    "performance-import": draw_import,
    "performance-messages": draw_messages,
    "performance-compat": draw_compat,
    "performance-facade": draw_facade,
    "performance-facade-aiokafka": draw_facade_aiokafka,
}
CHARTS: dict[str, Callable[[], str]] = {
    "speed.svg": speed_chart,
    "codecs.svg": codec_chart,
    "transactions.svg": transaction_chart,
}


def stale_charts() -> list[str]:
    """Return the charts that differ from the current results."""
    paths = {name: IMAGES / name for name in CHARTS}
    return [name for name, path in paths.items() if not path.exists() or path.read_text("utf-8") != CHARTS[name]()]


def main(arguments: list[str]) -> int:
    """Write the charts, or only compare them."""
    stale = stale_charts()
    if arguments == ["--check"]:
        for name in stale:
            print(
                f"docs/images/{name} is not what the results say; run: python tools/draw_performance.py",
                file=sys.stderr,
            )
        return bool(stale)
    IMAGES.mkdir(exist_ok=True)
    for name in stale:
        (IMAGES / name).write_text(CHARTS[name](), encoding="utf-8")
        print(f"docs/images/{name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
