"""MovieLens 100k as arrays, and what was known of each user and film before each rating."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from trainer.dpp.errors import SourceError
from trainer.dpp.sources.columns import lists

LIKED = 4  # stars
_DAY_S = 86_400
_PRIOR_RATING, _PRIOR_LIKED, _PRIOR_COUNT = 3.5, 0.5, 5.0  # fixed beforehand: a prior out of the data would leak
_FIRST_GENRE, _GENRES = 5, 19  # genre flags follow five columns of the films' table
_FIRST_YEAR = 1900

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Ratings:
    """Ratings in order of time (seconds), user and film, with their users' and films' facts as codes (0: unknown)."""

    time_s: Ids
    user: Ids
    movie: Ids
    rating: Ids
    user_age: Ids
    gender: Ids
    occupation: Ids
    zip_area: Ids
    release_year: Ids
    genres: pa.Array

    @property
    def day(self) -> Ids:
        """Days since the epoch."""
        return self.time_s // _DAY_S

    @property
    def first_day(self) -> date:
        return _date(int(self.day[0]))

    @property
    def last_day(self) -> date:
        return _date(int(self.day[-1]))


def _date(day: int) -> date:
    return datetime.fromtimestamp(day * _DAY_S, UTC).date()


def load_ratings(folder: Path) -> Ratings:
    """Read the tables of the package.

    Raises:
        SourceError: a table is missing or not as expected.
    """
    try:
        tables = [pq.read_table(folder / f"MovieLens100k_{name}.parquet.brotli") for name in ("data", "users", "items")]
        return ratings_of(*tables)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise SourceError(f"{folder}: not the MovieLens tables ({error}); remove it and prepare again") from error


def ratings_of(ratings: pa.Table, users: pa.Table, movies: pa.Table) -> Ratings:
    """Join the three tables."""
    ratings = ratings.sort_by([("timestamp", "ascending"), ("user_id", "ascending"), ("movie_id", "ascending")])
    user, movie = ratings["user_id"].to_numpy(), ratings["movie_id"].to_numpy()
    of_user = pc.index_in(ratings["user_id"], value_set=users["user_id"].combine_chunks()).to_numpy()
    of_movie = pc.index_in(ratings["movie_id"], value_set=movies["movie_id"].combine_chunks()).to_numpy()
    years = pc.fill_null(pc.cast(pc.utf8_slice_codeunits(movies["release_date"], -4), pa.int64()), _FIRST_YEAR)
    areas = pc.utf8_slice_codeunits(users["zip_code"], 0, 1)
    digits = pc.add(pc.index_in(areas, value_set=pa.array(list("0123456789"))), 1)
    return Ratings(
        time_s=ratings["timestamp"].to_numpy(),
        user=user,
        movie=movie,
        rating=ratings["rating"].to_numpy(),
        user_age=users["age"].to_numpy()[of_user],
        gender=_codes(users["gender"])[of_user],
        occupation=_codes(users["occupation"])[of_user],
        zip_area=pc.fill_null(digits, 0).to_numpy().astype(np.int64)[of_user],
        release_year=years.to_numpy()[of_movie] - _FIRST_YEAR,
        genres=_genres(movies).take(pa.array(of_movie)),
    )


def _codes(texts: pa.ChunkedArray) -> Ids:
    known = pc.unique(texts.drop_null()).sort()
    return pc.fill_null(pc.add(pc.cast(pc.index_in(texts, value_set=known), pa.int64()), 1), 0).to_numpy()


def _genres(movies: pa.Table) -> pa.Array:
    flags = np.stack([movies.column(_FIRST_GENRE + genre).to_numpy() for genre in range(_GENRES)], axis=1) > 0
    _, genre = np.nonzero(flags)
    return lists(flags.sum(axis=1), genre + 1)


def features(ratings: Ratings) -> dict[str, Any]:
    """Every column that needs no calendar, for all ratings. Only strictly earlier ratings (by the second) count."""
    liked = (ratings.rating >= LIKED).astype(np.int64)
    by_user, by_movie = _Before(ratings.user, ratings.time_s), _Before(ratings.movie, ratings.time_s)
    genre_counts = pc.list_value_length(ratings.genres).to_numpy(zero_copy_only=False)
    main_genre = np.zeros(len(liked), dtype=np.int64)
    starts = ratings.genres.offsets.to_numpy()[:-1][genre_counts > 0]
    main_genre[genre_counts > 0] = ratings.genres.values.to_numpy()[starts]
    year = ratings.time_s.astype("datetime64[s]").astype("datetime64[Y]").astype(np.int64) + 1970 - _FIRST_YEAR
    age = np.where(ratings.release_year > 0, np.maximum(year - ratings.release_year, 0), 0)
    return {
        "label": liked,
        "user_id": ratings.user,
        "user_ratings": by_user.count,
        "user_mean_rating": _mean(by_user, ratings.rating, _PRIOR_RATING),
        "user_share_liked": _mean(by_user, liked, _PRIOR_LIKED),
        "movie_ratings": by_movie.count,
        "movie_mean_rating": _mean(by_movie, ratings.rating, _PRIOR_RATING),
        "movie_share_liked": _mean(by_movie, liked, _PRIOR_LIKED),
        "movie_age_years": age,
        "user_age": ratings.user_age,
        "movie_id": ratings.movie,
        "main_genre": main_genre,
        "release_year": ratings.release_year,
        "occupation": ratings.occupation,
        "gender": ratings.gender,
        "age_band": ratings.user_age // 10,
        "zip_area": ratings.zip_area,
        "hour": ratings.time_s % _DAY_S // 3600,
    }


def recent(ratings: Ratings, chosen: NDArray[np.bool_], longest: int) -> pa.Array:
    """For each rating, the films among `chosen` ratings that its user rated strictly before, newest first."""
    before = _Before(ratings.user, ratings.time_s)
    earlier = before.sum(chosen.astype(np.int64)).astype(np.int64)
    order = before.order[chosen[before.order]]  # chosen ratings by user and time
    starts = np.searchsorted(ratings.user[order], ratings.user)
    lengths = np.minimum(earlier, longest)
    back = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return lists(lengths, ratings.movie[order[np.repeat(starts + earlier - 1, lengths) - back]])


class _Before:
    """For each event, the events of the same key at strictly earlier times."""

    def __init__(self, key: Ids, time_s: Ids) -> None:
        self.order = np.lexsort((time_s, key))
        sorted_key, sorted_time = key[self.order], time_s[self.order]
        new_key = np.concatenate([[True], sorted_key[1:] != sorted_key[:-1]])
        new_time = new_key | np.concatenate([[True], sorted_time[1:] != sorted_time[:-1]])
        place = np.arange(len(key))
        self._key_start = np.maximum.accumulate(np.where(new_key, place, 0))
        self._time_start = np.maximum.accumulate(np.where(new_time, place, 0))
        self.count = self._unsorted(self._time_start - self._key_start)

    def sum(self, values: Ids) -> NDArray[np.float64]:
        """The sum of `values` over the earlier events."""
        running = np.concatenate([[0.0], np.cumsum(values[self.order])])
        return self._unsorted(running[self._time_start] - running[self._key_start])

    def _unsorted(self, values: np.ndarray) -> np.ndarray:
        back = np.empty_like(values)
        back[self.order] = values
        return back


def _mean(before: _Before, values: Ids, prior: float) -> NDArray[np.float64]:
    return (before.sum(values) + prior * _PRIOR_COUNT) / (before.count + _PRIOR_COUNT)
