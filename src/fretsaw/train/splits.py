"""Which files of a folder serve which split, by their names; files named for a split stay apart."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from fretsaw.errors import DataError, nearest
from fretsaw.train.files import TextFile, problem_of, text_file, walk, without_shard
from fretsaw.train.found import Counted, Tally

Split = Literal["train", "calibration", "validation"]

ALIASES: Mapping[Split, tuple[str, ...]] = {
    "train": ("training",),
    "calibration": ("calib",),
    "validation": ("valid", "val", "dev", "eval", "test", "heldout", "held_out"),
}
"""What others call our splits; never taken for ours unasked, but never mixed with others either."""

ROWS = (".jsonl", ".jsonlines", ".ndjson", ".parquet", ".pq", ".arrow")
"""Suffixes of data: a file named for a split is one, wherever it lies."""

PROSE = (".md", ".markdown", ".rst", ".tex", ".html", ".htm", ".adoc", ".org")
"""Pages are named `test` or `training` for what they are about: only our own words count."""

CODE = re.compile(
    r"\.(py|pyi|ipynb|[ch]|cc|[ch]pp|cuh?|m?[jt]sx?|java|go|rs|rb|(ba|z)?sh|ps1|bat|pl|php|swift|kt|scala|"
    r"lua|r|jl|m|[cf]s|sql|hs|mli?|exs?|erl|clj|dart|proto|cmake|mk|vim|el|toml|cfg|ini|ya?ml|xml|"
    r"s?css|lock|log)"
)
"""A program named `train` trains: it is no split."""

ABOUT = ("readme", "license", "licence", "notice", "dataset_infos", "dataset_info", "_success")
"""Stems of files that describe data; no text of it."""


@dataclass(frozen=True)
class SplitFiles:
    """Files that serve a split.

    Attributes:
        files: In the order of their names.
        is_own: They are the split's own; else a share of all pieces is, by hash.
        ignored: Files that are not read, by the reason.
    """

    files: tuple[TextFile, ...]
    is_own: bool
    ignored: tuple[Counted, ...] = ()


@dataclass
class _Folder:
    """What a folder holds, and what each file is named for."""

    path: Path
    wanted: Mapping[Split, str]
    files: list[TextFile] = field(default_factory=list)
    broken: dict[TextFile, str] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    def read(self) -> None:
        for path, problem in walk(self.path):
            file = text_file(path, path.relative_to(self.path).as_posix())
            if problem:
                self.broken[file] = problem
            else:
                self.files.append(file)
        self.files.sort(key=lambda file: file.name)

    @property
    def ours(self) -> set[str]:
        return {name.lower() for name in self.wanted.values()}

    @property
    def words(self) -> set[str]:
        return self.ours | {w for s in get_args(Split) for w in (s, *ALIASES[s])}

    def labelled(self) -> dict[str, list[TextFile]]:
        """Split name -> files named for it, where the folder is laid out by split; else empty.

        Raises:
            DataError: a file is named for one split and lies in the folder of another.
        """
        by_file = self._by_file()
        self.named.update(by_file)
        by_folder = self._by_folder(has_files=bool(by_file))
        found: dict[str, list[TextFile]] = defaultdict(list)
        for file in [*self.files, *self.broken]:
            own, around = by_file.get(file.name), by_folder.get(file.name)
            if own and around and self._meant(own) != self._meant(around):
                raise DataError(
                    f"{file.path} is named for the split {own!r} and lies in that of {around!r}",
                    "rename the file, or move it: text of two splits is never mixed",
                )
            if label := around or own:
                found[label].append(file)
        return found

    def _meant(self, label: str) -> str:
        """Which of our splits a label speaks of; itself where that is none."""
        parts = label.replace("-", "_").split("_")
        for split in get_args(Split):
            known = (self.wanted[split].lower(), split, *ALIASES[split])
            if label in known or not set(known).isdisjoint((parts[0], parts[-1])):
                return str(split)
        return label

    def _by_file(self) -> dict[str, str]:
        """File -> the split that its own name speaks of."""
        labels: dict[str, dict[str, str]] = defaultdict(dict)
        is_strong = set()
        for file in [*self.files, *self.broken]:
            if label := self._spoken(file):
                place = str(file.path.parent)
                labels[place][file.name] = label
                if file.path.parent == self.path or file.suffix in ROWS:
                    is_strong.add(place)
        counts = {place: len(self.ours & set(own.values())) for place, own in labels.items()}
        kept = (own for place, own in labels.items() if place in is_strong or counts[place] > 1)
        return {name: label for own in kept for name, label in own.items()}

    def _spoken(self, file: TextFile) -> str | None:
        stem = without_shard(file.stem)
        if CODE.fullmatch(file.suffix):
            return None
        if file.suffix in PROSE:
            return stem if stem in self.ours else None
        if file.suffix in ROWS and stem.rstrip("0123456789") in self.words:
            return stem.rstrip("0123456789")
        if stem in self.words:
            return stem
        if dotted := [part for part in stem.split(".") if part in self.words]:
            return dotted[0]
        words = stem.replace("-", "_").split("_")
        is_affixed = file.suffix in ROWS and not self.words.isdisjoint((words[0], words[-1]))
        return stem if is_affixed else None

    def _by_folder(self, *, has_files: bool) -> dict[str, str]:
        """File -> the split that the outermost folder so named stands for."""
        labels: dict[str, str] = {}
        data = set()
        is_strong = has_files
        for file in self.files:
            parts = [without_shard(_bare(part)) for part in Path(file.name).parts[:-1]]
            depth = next((i for i, part in enumerate(parts) if part in self.words), None)
            if depth is None or (depth > 0 and file.suffix not in ROWS):
                continue
            labels[file.name] = parts[depth]
            is_strong |= file.suffix in ROWS
            data |= {parts[depth]} if file.is_sure else set()
        present = self.ours & set(labels.values())
        train = self.wanted["train"].lower()
        has_loose = any(f.name not in labels and f.stem not in ABOUT for f in self.files)
        is_laid_out = (
            is_strong or max(len(present), len(data)) > 1 or (train in present and not has_loose)
        )
        return labels if is_laid_out else {}


def _bare(part: str) -> str:
    """A folder's name; some programs write `train.parquet/part-0.parquet`."""
    file = text_file(Path(part), part)
    return file.stem if file.is_sure else part.lower()


def files_of_split(path: Path, split: Split, *, names: Mapping[Split, str]) -> SplitFiles:
    """The files of a folder that serve a split.

    A folder is laid out by split if files are named for splits, or folders are. Then only those of
    the wanted split are read. Else all its text is.

    Args:
        path: A folder.
        split: Which split is wanted.
        names: What the splits are called there.

    Raises:
        DataError: no such split, a file of it is not what its name says, or no text at all.
    """
    folder = _Folder(path, names)
    folder.read()
    labelled = folder.labelled()
    if not labelled:
        return _kept(folder, folder.files, is_own=False)
    check_split(path, split, wanted=names[split], present=labelled)
    own = labelled[names[split].lower()]
    if lost := next((file for file in own if file in folder.broken), None):
        raise DataError(f"{lost.path}: {folder.broken[lost]}", "put the file itself there")
    _check_once(file for file in own if file.name in folder.named)
    known = {file.name for files in labelled.values() for file in files}
    return _kept(folder, own, is_own=True, known=known)


def _kept(
    folder: _Folder, files: Sequence[TextFile], *, is_own: bool, known: Collection[str] = ()
) -> SplitFiles:
    """Those of the files that are text, and why others of the folder are not read.

    `known` are names of files that serve some split.
    """
    ignored, kept = Tally(), []
    has_rows = any(file.kind != "text" for file in files)
    read: set[tuple[int, int]] = set()
    for file, problem in _strangers(folder, known, is_own=is_own):
        ignored.count("skipped", problem, where=file.shown)
    for file in files:
        problem = problem_of(file)
        if problem and (file.is_sure or file.name in folder.named):
            raise refusal(file, problem)
        if not problem and file.identity in read:
            problem = "a link to a file that is read already"
        if problem:
            ignored.count("skipped", problem, where=file.shown)
        elif not (has_rows and file.stem in ABOUT):
            read.add(file.identity)
            kept.append(file)
    reasons = ignored.counted("skipped")
    if not kept:
        raise DataError(
            f"{folder.path} holds no text: no Parquet, JSONL or UTF-8 text file"
            + (f"; not read: {', '.join(map(str, reasons))}" if reasons else ""),
            "give a folder of .txt, .jsonl or .parquet files",
        )
    return SplitFiles(tuple(kept), is_own, reasons)


def _strangers(
    folder: _Folder, known: Collection[str], *, is_own: bool
) -> Iterator[tuple[TextFile, str]]:
    """Files that serve no split, and why; those that describe the data are left out."""
    for file, problem in folder.broken.items():
        if file.name not in known:
            yield file, problem
    for file in folder.files if is_own else ():
        if file.name not in known and file.stem not in ABOUT:
            yield file, "named for no split"


def check_split(path: Path, split: Split, *, wanted: str, present: Iterable[str]) -> None:
    """Check that a data set has a split.

    Raises:
        DataError: it has not; names the likeliest of those that it has.
    """
    names = sorted(present)
    if wanted.lower() in (name.lower() for name in names):
        return
    alias = next((name for name in ALIASES[split] if name in names), None)
    guess = alias or nearest(wanted, names) or ("train" if split == "calibration" else None)
    is_ours = not set(names).isdisjoint(get_args(Split))
    raise DataError(
        f"{path} has no split {wanted!r}; its splits: {', '.join(names)}",
        f"data.splits.{split}: {guess if guess in names else names[0]}"
        + ("" if is_ours else "; if the files are no splits, rename them"),
    )


def _check_once(files: Iterable[TextFile]) -> None:
    """Refuse the same file twice: in two formats, or packed and unpacked."""
    by_stem: dict[tuple[str, str], TextFile] = {}
    for file in files:
        key = (str(file.path.parent), file.stem)
        known = by_stem.setdefault(key, file)
        if (known.suffix, known.compression) != (file.suffix, file.compression):
            raise DataError(
                f"{known.path} and {file.path.name} are the same split in two forms",
                "keep one of them: else its text would be read twice, or half of it not at all",
            )


def refusal(file: TextFile, problem: str) -> DataError:
    """The error of a file that does not hold what its name says."""
    return DataError(f"{file.path} is not read: {problem}", _remedy(problem, file))


def _remedy(problem: str, file: TextFile) -> str:
    if "pointer" in problem:
        return "fetch the file: git lfs pull, or git annex get"
    if "table" in problem or "read unpacked" in problem:
        return "unpack it, or convert it to JSONL or Parquet"
    if "UTF" in problem:
        return f"convert it, e.g. iconv -f LATIN1 -t UTF-8 {file.path.name}"
    return "rename it to what it is, or convert it"


def single_file(path: Path) -> SplitFiles:
    """A file that serves all splits by hash.

    Raises:
        DataError: it is not what its name says.
    """
    file = text_file(path, path.name)
    if problem := problem_of(file):
        raise refusal(file, problem)
    return SplitFiles((file,), is_own=False)
