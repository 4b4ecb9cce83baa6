# SPDX-License-Identifier: Apache-2.0
"""The tables and charts of docs/performance.md, from the files in benchmarks/results; no figure is typed by hand.

Usage: python tools/draw_performance.py [--check]      --check: write nothing, fail if a chart is stale

tools/draw_docs.py puts the tables into the pages. The charts are SVG files in docs/images, readable on light and on
dark pages, with the value next to each bar.
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
Row = dict[str, Any]


@cache
def result(name: str) -> Row:
    """Return one file of results."""
    loaded: Row = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def figure(value: float) -> str:
    """Return a measured value with three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


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
    """Return what each shape of records is."""
    return table(("shape", "records"), SHAPES.items())


def draw_conditions() -> str:
    """Return where and when each file of results was measured."""
    rows = []
    for name in (
        "kcodec",
        "encode",
        "peers",
        "producer",
        "consumer",
        "transactions",
        "session",
        "spark",
        "cli",
        "seek",
    ):
        found = result(name)
        parts = [found, *(part for part in found.values() if isinstance(part, dict))]
        dates = [str(part.get("date") or part.get("when")) for part in parts if part.get("date") or part.get("when")]
        machine = found.get("machine", {})
        cores = machine.get("cores") or next((part["cores"] for part in parts if "cores" in part), "")
        known = [
            f"{cores} cores" if cores else "",
            machine.get("cpu", ""),
            f"Python {machine['python']}" if machine.get("python") else "",
        ]
        where = ", ".join(one for one in known if one)
        rows.append((f"[{name}.json](../benchmarks/results/{name}.json)", dates[0] if dates else "", where))
    return table(("file of results", "date of the measurement", "machine"), rows)


def draw_decode() -> str:
    """Return decoding, next to aiokafka and to the C decoder."""
    rows = by_key(result("kcodec")["parts"]["decode"], builder="aiokafka")
    lines = []
    for codec, shape in cases(rows):
        row = rows[codec, shape]
        times = [row[one]["median"] for one in ("kcodec", "aiokafka", "floor")]
        lines.append((codec, shape, *map(figure, times), ratio(times[1] / times[0]), ratio(times[0] / times[2])))
    head = ("codec", "shape", "kcodec", "aiokafka", "C decoder", "aiokafka / kcodec", "kcodec / C decoder")
    return table(head, lines)


def draw_decode_peers() -> str:
    """Return decoding next to the consumers of Java, Go and Rust."""
    rows = by_key(result("peers")["parts"]["peers"], builder="aiokafka")
    names = ("kcodec", "java", "go", "rust")
    lines = [
        (*case, *(figure(rows[case][one]["median"]) if one in rows[case] else "" for one in names))
        for case in cases(rows)
    ]
    return table(("codec", "shape", "kcodec", "Java", "Go (franz-go)", "Rust (kafka-protocol)"), lines)


def draw_encode() -> str:
    """Return encoding, from Arrow and from rows, next to aiokafka, Java and Rust."""
    own = by_key(result("encode")["parts"]["encode"])
    peers = by_key(result("peers")["parts"]["encode"])
    lines = []
    for case in cases(own):
        pairs = [(own[case], one) for one in ("kcodec", "kcodec rows", "aiokafka")]
        pairs += [(peers[case], one) for one in ("java", "rust")] + [(own[case], "floor")]
        lines.append((*case, *(figure(row[one]["median"]) if one in row else "" for row, one in pairs)))
    return table(("codec", "shape", "kcodec, Arrow", "kcodec, rows", "aiokafka", "Java", "Rust", "C encoder"), lines)


def draw_produce() -> str:
    """Return the processor time of producing."""
    names = ("kcodec send_arrow", "kcodec send", "confluent-kafka", "aiokafka")
    rows = [(row["codec"], row["shape"], *(figure(row[name]) for name in names)) for row in result("producer")["cpu"]]
    return table(("codec", "shape", *(f"`{n[7:]}`" if n.startswith("kcodec") else n for n in names)), rows)


def draw_consume() -> str:
    """Return the processor time of consuming to Arrow."""
    names = ("kcodec", "confluent-kafka", "aiokafka")
    rows = [(row["codec"], row["shape"], *(figure(row[name]) for name in names)) for row in result("consumer")["arrow"]]
    return table(("codec", "shape", "`poll_arrow`", *names[1:]), rows)


def draw_poll() -> str:
    """Return how many records a second arrive as objects."""
    names = ("kcodec", "confluent-kafka", "aiokafka")
    rows = [(row["codec"], row["shape"], *(f"{row[name]:,}" for name in names)) for row in result("consumer")["poll"]]
    return table(("codec", "shape", "`poll`", "confluent-kafka `consume`", "aiokafka `getmany`"), rows)


def draw_transactions() -> str:
    """Return transactions a second, one after the other."""
    rates = result("transactions")["rate"]["median"]
    cost = result("transactions")["cost"]
    names = {
        "kcodec send": "kcodec with `send`",
        "kcodec send_arrow": "kcodec with `send_arrow`",
        "confluent-kafka linger 0": "confluent-kafka with a linger of 0 ms",
        "aiokafka linger 5": "aiokafka with a linger of 5 ms",
    }
    lines = [(names.get(name, name), f"{rate:,.0f}") for name, rate in rates.items()]
    text = table(("client", "transactions a second"), lines)
    shares = [(client, f"{cost[client]['ratio']:.2f}") for client in ("kcodec", "Java")]
    head = ("client", "throughput with a commit every 100 ms / throughput without transactions")
    return text + "\n" + table(head, shares)


def draw_session() -> str:
    """Return how long the end of a transaction takes."""
    found = {name: row for name, row in result("session")["commit"].items() if isinstance(row, dict)}
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
    """Return what is measured on segments of 1 GB: memory, seeks, and the command line."""
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
    names = {"data source": '`spark.read.format("kcodec")`', "mapInArrow": "`kcodec.spark.decode_in_arrow`"}
    lines = [
        (
            names.get(row["door"], row["door"]),
            f"{row['rows_per_second']:,}",
            f"{row['cpu_ns_per_row']} ns",
            f"{row['ratio']:.2f}",
        )
        for row in result("spark")["doors"]
    ]
    head = (
        "how Spark reads",
        "rows a second",
        "processor time of a row",
        "speed / speed with ready-made Arrow batches",
    )
    return table(head, lines)


def draw_messages() -> str:
    """Return how long messages of the protocol take."""
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


def draw_compat() -> str:
    """Return how much faster aiokafka and kafka-python are with kcodec inside."""
    rows = result("compat")["parts"]["compat"]
    names = {
        "read": "decode with the record classes",
        "consume": "decode a fetch response in the consumer",
        "build": "encode with the batch builder",
    }
    lines = []
    for client in ("aiokafka", "kafka-python"):
        for part, what in names.items():
            found = by_key(rows, client=client, part=part)
            cells = (
                " / ".join(figure(found[codec, shape]["times"]) for shape in "abcd")
                for codec in ("none", "lz4", "zstd")
            )
            lines.append((client, what, *cells))
    codecs = (f"{codec}: a / b / c / d" for codec in ("none", "lz4", "zstd"))
    return table(("client", "part", *codecs), lines)


# ------------------------------------------------------------------------------------------------------------ charts

Bars = list[tuple[str, float]]
WIDTH, LABEL, BAR_WIDTH, ROW, HEAD = 720, 190, 400, 22, 34


def chart(title: str, panels: list[tuple[str, Bars]], unit_of: Callable[[float], str]) -> str:
    """Return horizontal bars as SVG, one panel below the other, each with its own scale. The first bar is kcodec's."""
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
    produce = next(row for row in result("producer")["cpu"] if (row["codec"], row["shape"]) == ("none", "a"))
    consume = next(row for row in result("consumer")["arrow"] if (row["codec"], row["shape"]) == ("none", "a"))
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
            "Produce to a broker (send_arrow: from Arrow columns; send: record by record)",
            [(name, produce[name]) for name in ("kcodec send_arrow", "kcodec send", "confluent-kafka", "aiokafka")],
        ),
    ]
    title = "Processor time of one record of 100 bytes, in nanoseconds (shorter is better)"
    return chart(title, panels, lambda value: f"{figure(value)} ns")


def transaction_chart() -> str:
    """Return transactions a second of each client."""
    rates = result("transactions")["rate"]["median"]
    bars = [
        (name.replace("kcodec send", "kcodec"), rates[name]) for name in ("kcodec send", "confluent-kafka", "aiokafka")
    ]
    title = "Transactions a second, one after the other (longer is better)"
    return chart(title, [("100 records over three partitions in each", bars)], lambda value: f"{value:,.0f}")


def codec_chart() -> str:
    """Return decoding in each codec, next to aiokafka."""
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
    "performance-encode": draw_encode,
    "performance-produce": draw_produce,
    "performance-consume": draw_consume,
    "performance-poll": draw_poll,
    "performance-transactions": draw_transactions,
    "performance-session": draw_session,
    "performance-files": draw_files,
    "performance-spark": draw_spark,
    "performance-messages": draw_messages,
    "performance-compat": draw_compat,
}
CHARTS: dict[str, Callable[[], str]] = {
    "speed.svg": speed_chart,
    "codecs.svg": codec_chart,
    "transactions.svg": transaction_chart,
}


def stale_charts() -> list[str]:
    """Return the charts that are not what the results say now."""
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
