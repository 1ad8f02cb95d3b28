"""keepwell.toml and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepwell.config import Config, InvalidConfig, load_config


def write(path: Path, text: str) -> Path:
    file = path / "keepwell.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_without_anything_the_defaults_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(environ={}) == Config()


def test_the_environment_goes_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(
        tmp_path,
        '[runtime]\ndata_dir = "data"\ndurability = "process"\nname = "shop"\n'
        '[model]\nname = "gpt-5-mini"\nbase_url = "http://localhost:1/v1"\n'
        "[service]\ndrain_timeout = 5\n",
    )
    expected = Config("data", "process", "shop", "gpt-5-mini", "http://localhost:1/v1", 5.0)
    assert load_config(environ={}) == expected
    assert load_config(file, environ={}) == expected
    assert load_config(environ={"KEEPWELL_CONFIG": str(file)}) == expected
    changed = load_config(environ={"KEEPWELL_DATA_DIR": "other", "KEEPWELL_DRAIN_TIMEOUT": "1.5"})
    assert (changed.data_dir, changed.drain_timeout, changed.name) == ("other", 1.5, "shop")


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[runtime]\ndurability = "fast"', "runtime.durability", '"power" or "process"'),
        ("[runtime]\ndata_dir = 3", "runtime.data_dir", "non-empty string"),
        ('[runtime]\ndata_dri = "x"', "runtime.data_dri", "did you mean runtime.data_dir?"),
        ('[elsewhere]\nthing = "x"', "elsewhere.thing", "known are runtime.data_dir"),
        ('data_dir = "x"', "data_dir", "stands outside a section"),
        ("[service]\ndrain_timeout = -1", "service.drain_timeout", "from 0 up"),
        ("[service]\ndrain_timeout = true", "service.drain_timeout", "from 0 up"),
        ('[model]\nbase_url = "localhost"', "model.base_url", "http://"),
        ("[runtime", "syntax", ""),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(
    tmp_path: Path, text: str, key: str, words: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InvalidConfig) as refused:
        load_config(file, environ={})
    assert refused.value.key == key
    assert str(file) in str(refused.value)
    assert words in str(refused.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(InvalidConfig, match="KEEPWELL_DRAIN_TIMEOUT"):
        load_config(environ={"KEEPWELL_DRAIN_TIMEOUT": "soon"})


def test_secrets_in_a_file_are_refused_and_never_shown(tmp_path: Path) -> None:
    file = write(tmp_path, '[model]\napi_key = "sk-very-secret"')
    with pytest.raises(InvalidConfig) as refused:
        load_config(file, environ={})
    assert "sk-very-secret" not in str(refused.value)
    assert "OPENAI_API_KEY" in str(refused.value)


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        load_config(tmp_path / "absent.toml", environ={})


def test_a_configured_runtime_runs(tmp_path: Path) -> None:
    config = load_config(environ={"KEEPWELL_DATA_DIR": str(tmp_path / "data")})
    with config.runtime() as runtime:
        assert runtime.health().ready
        assert runtime.data_dir == str(tmp_path / "data")
    with Config().runtime() as runtime:
        assert runtime.data_dir is None
