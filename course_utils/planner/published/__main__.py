"""Print every published row beside the prediction, and the errors per source: see the package."""

from . import KINDS, PREDICTION, memories, misses, rows, summary


def main() -> None:
    """Print all rows, then the errors of predictions per source, of the other kinds, and of memory."""
    found, held = list(rows()), list(memories())
    for each in (found, held, misses()):
        for row in each:
            print(
                f"{row.source:28s} {row.what:52s} {row.published:9.4g} {row.predicted:9.4g} {row.error:+7.1%}  "
                f"{row.unit}{'' if row.kind == PREDICTION else ', ' + row.kind}"
            )
    print()
    predictions = [row for row in found if row.kind == PREDICTION]
    for source in dict.fromkeys(row.source for row in predictions):
        print(f"{source:28s} {summary(row for row in predictions if row.source == source)}")
    for kind in KINDS:
        print(f"all of kind {kind:16s} {summary(row for row in found if row.kind == kind)}")
    for source in dict.fromkeys(row.source for row in held):
        print(f"{f'memory, {source}':28s} {summary(row for row in held if row.source == source)}")
    for reason in dict.fromkeys(row.reason for row in (*found, *misses()) if row.reason):
        print(reason)


main()
