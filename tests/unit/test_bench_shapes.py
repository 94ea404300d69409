"""Short runs of the benchmarks of many threads and of random shapes."""

from bench import many_threads, shapes
from everlong.limits import KIB, MIB


async def test_many_threads_are_measured_beside_the_ideal() -> None:
    size = many_threads.Size(threads=3, list_bytes=40_000, rounds=2, bounds=(MIB,), judged=False)
    report = await many_threads.measure_many_threads(size)
    [series] = report.series
    rows = {str(row[0]): dict(zip(series.columns, row, strict=True)) for row in series.rows}
    [ideal, default, *_] = rows.values()
    assert int(str(ideal["bytes written"])) > 3 * 5_000
    # Three small threads fit into any memory.
    assert default["over ideal"] == 1
    assert len(rows) == (3 if many_threads.is_setting() else 2)


async def test_a_shape_is_the_same_for_a_seed_and_reads_back() -> None:
    shape = shapes.draw_shape(5)
    assert shape == shapes.draw_shape(5)
    first = await shapes.run_shape(shape, steps=6, new_bytes_max=MIB)
    assert first == await shapes.run_shape(shape, steps=6, new_bytes_max=MIB)
    assert first.new_bytes > 0


async def test_a_shape_with_edits_and_compactions_sends_lists_that_shrink() -> None:
    busy = shapes.Shape(
        seed=1,
        appended="4-32",
        others=2,
        other_sizes="1-4",
        joining=True,
        lists=2,
        edits=0.5,
        compactions=0.5,
    )
    result = await shapes.run_shape(busy, steps=20, new_bytes_max=4 * MIB)
    assert result.steps == 20
    assert result.new_bytes > 20 * 2 * KIB
    assert result.written_over_log < result.written_over_new


async def test_the_worst_of_random_shapes_are_listed() -> None:
    report = await shapes.measure_shapes(shapes.Size(shapes=3, steps=5, new_bytes_max=MIB))
    [series] = report.series
    assert len(series.rows) == 3 + len(shapes.WEAK)
    column = series.columns.index("/log2")
    ratios = [float(str(row[column])) for row in series.rows]
    assert ratios == sorted(ratios, reverse=True)
