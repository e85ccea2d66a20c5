"""Secrets in command lines: what is taken out, and what is left as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputrace.masking import MASK, mask

SECRET = "hunter2"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVP"


@pytest.mark.parametrize(
    "argument",
    [
        "--token={}",
        "--password={}",
        "--api-key={}",
        "--apiKey={}",
        "--wandb_api_key={}",
        "API_KEY={}",
        "KEY={}",
        "DB_PASSWORD={}",
        "AWS_SECRET_ACCESS_KEY={}",
        "GITHUB_TOKEN={}",
        "+logger.wandb.api_key={}",
        "trainer.secrets.hub={}",
        "postgresql://me:{}@db.example/x?sslmode=require",
        "https://{}@github.com/a/b.git",
        "redis://:{}@cache:6379/0",
        "https://example.com/f?sig={}&x=1",
        "https://example.com/f?x=1&access_token={}",
        "Authorization: Bearer {}",
        "X-Api-Key: {}",
        '{{"api_key": "{}", "x": 1}}',
        "{{'password': '{}'}}",
        "export TOKEN={} && python train.py",
        "import x; x.login(password='{}')",
        "login(token = '{}')",
        "PGPASSWORD={} psql",
        "train.sh --token {} | tee log",
        "train.sh --password '{}' && echo done",
        "subprocess.run(['train', '--api-key', '{}'])",
        '["--hf-token","{}"]',
        "--password={} and more of it",
    ],
)
def test_inside_an_argument(argument: str) -> None:
    (masked,) = mask([argument.format(SECRET)])
    assert SECRET not in masked
    assert "and more" not in masked
    assert MASK in masked
    assert masked.startswith(argument.partition("{}")[0].replace("{{", "{").replace("Bearer ", ""))


@pytest.mark.parametrize(
    "option", ["--token", "--password", "-password", "--hf-token", "--secret", "--api_key", "--client-secret", "--pat"]
)
@pytest.mark.parametrize("value", [SECRET, "-hunter2", "a b c"])
def test_behind_an_option(option: str, value: str) -> None:
    assert mask(["prog", option, value, "--epochs", "3"]) == ["prog", option, MASK, "--epochs", "3"]


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-abcdefghijklmnop1234",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "hf_abcdefghijklmnopqrstuv0123",
        "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",
        "xoxb-123456789012-abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        JWT,
    ],
)
@pytest.mark.parametrize("around", ["{}", "login {} now", "f('{}')"])
def test_well_known_keys(key: str, around: str) -> None:
    assert mask([around.format(key)]) == [around.format(MASK)]


@pytest.mark.parametrize(
    "argument",
    [
        "train.py",
        "--lr=0.1",
        "--key-dim=64",
        "--max-tokens=512",
        "--tokenizer=gpt2",
        "--token-file=/run/secrets/t",
        "--author=me",
        "monkey=1",
        "AWS_ACCESS_KEY_ID=x",
        "train.sh --token --verbose; train.sh --token-file f --key-dim 3 --token",
        "https://example.com/a?b=c",
        "ssh://git@github.com/a/b",
        "git@github.com:a/b.git",
        "s3://bucket/key",
        "a:b",
        "sk-learn-with-a-long-name",
        "if key == 3: pass",
        "C:\\key",
        "",
        "=",
        "://",
        "@",
        "naïve=ü",
        "\udcff",
    ],
)
def test_left_as_it_was(argument: str) -> None:
    assert mask([argument]) == [argument]


def test_an_option_that_takes_no_value() -> None:
    assert mask(["--use-token", "--verbose", "--token"]) == ["--use-token", "--verbose", "--token"]


@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_command_line(command_line: list[str]) -> None:
    """One argument stays one, and what was masked once is left as it is."""
    once = mask(command_line)
    assert len(once) == len(command_line)
    assert mask(once) == once


@given(st.text(st.characters(categories=["L", "N"]), min_size=8, max_size=20).filter(lambda text: "token" not in text))
def test_any_secret(secret: str) -> None:
    for line in (["--token", secret], [f"--token={secret}"], [f"A_KEY={secret}"], [f"https://u:{secret}@h/"]):
        assert secret not in " ".join(mask(line))
