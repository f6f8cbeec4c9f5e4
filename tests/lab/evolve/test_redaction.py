"""Redaction: a table of secrets never passes, and kernels pass as they are."""

from __future__ import annotations

import random
import string
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retuned import catalog
from retuned.lab.generators.evolve.redaction import redact, redactor, secrets_only

SECRETS = [
    ("key sk-proj-abcdefghijklmnop1234567890", "abcdefgh"),
    ("sk-ant-api03-AbCdEfGhIjKlMnOp1234", "AbCdEf"),
    ("Authorization: Bearer abc.def.ghijklmnop123456", "ghijkl"),
    ("curl -H 'Authorization: Basic dXNlcjpwYXNz'", "dXNl"),
    ("bearer 8f14e45fceea167a5a36dedd4bea2543", "8f14"),
    ("token = ghp_ABCDEFGHIJKLMNOPQRSTUVWXYZ012345", "ABCDEFGH"),
    ("glpat-Zx81kQpLm29sWvTz4bNc", "Zx81"),
    ("hf_AbCdEfGhIjKlMnOpQrStUv", "AbCd"),
    ("xoxb-12345678901-abcdefghij", "12345"),
    ("AKIAIOSFODNN7EXAMPLE", "AKIA"),
    ("AIzaSyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q", "SyA1"),
    ("aws_secret_access_key = 'wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY'", "wJalr"),
    ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJz"),
    ("MY_API_KEY=hunter2", "hunter2"),
    ("password: 'hunter2'", "hunter2"),
    ('{"password": "correct horse"}', "correct"),
    ("client_secret: Zm9vYmFyYmF6cXV4MTIzNDU2", "Zm9v"),
    ('const char* token = "Zm9vYmFyYmF6cXV4MTIzNDU2";', "Zm9v"),
    ("SECRET_KEY = b'0f1e2d3c4b5a69788796a5b4c3d2e1f0'", "0f1e"),
    ("HF_TOKEN=q7Rt2LmZx91WcVbNf3KjHg5", "q7Rt"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----", "abc"),
    ("-----BEGIN PRIVATE KEY-----\nabc", "abc"),
    ("in /home/lovelace/src/kernel.cpp:12: error", "lovelace"),
    ("in /opt/vendor/include/x.h", "vendor"),
    ("C:\\Users\\lovelace\\kernel.cu", "lovelace"),
    ("~/.ssh/id_rsa", "ssh"),
    ("node17.cluster.corp.internal said", "node17"),
    ("db.payments.svc.cluster.local:5432", "payments"),
    ("ip-10-1-2-3.ec2.internal", "ip-10"),
    ("on gpu-3.example.com", "gpu-3"),
    ("on gpu-3.lab.local now", "gpu-3"),
    ("at www.firma.de today", "firma"),
    ("shop.firma.co.uk", "firma"),
    ("from 10.20.30.40:8000", "10.20"),
    ("it is 10.20.30.40.", "10.20"),
    ("from fe80:0:0:0:1:2:3:4", "fe80"),
    ("https://user:pw@host.example/x?y=z", "host"),
    ("postgres://app:s3cr3t@db/prod", "s3cr3t"),
    ("s3://bucket/private", "bucket"),
    ("mail ada.lovelace+x@mail.example.org", "lovelace"),
    ("mail lovelace@firma.de.", "lovelace"),
]
CODE = [
    "acc[i] += x.y * tl.load(p + k, mask=k < K).to(tl.float32)",
    "const int64_t tokens = axes[0] / parts; // part of parts",
    "int token = blockIdx.x; auto key = keys[token];",
    "token = sorted_token_ids_2",
    "token=sorted_token_ids_ptr0 + offs_token_id1",
    "key = hash_of_block_16x16(x)",
    "float z = tile.local;\nreturn self.tile.local\nq = cfg.net.io.dev",
    "y = x@w.T + q @ k.mT; z = a@b.data[0]",
    'static_assert(N % 8 == 0, "N:\\n");',
    "@triton.autotune(configs=[], key=['M', 'N', 'K'])",
    "@triton.autotune(configs=CONFIGS, key=['sorted_token_ids_ptr', 'num_tokens_post_padded'])",
    "cache_key = 'gemm_m128n64k32_bf16_sm90'",
    "a.x-b.dev + p.io*2 - v.at(0)",
    "_mm512_fmadd_ps(a, b, c) /* a*b+c */ 1.5e-6f 3.14f",
    "for (int64_t m = M * part / parts; m < M * (part + 1) / parts; ++m)",
    "#include <immintrin.h>\n#pragma GCC unroll 4",
    "s.at(0) + v.size() - it.us",
    '@triton.jit\ndef k(x, y, M, H: tl.constexpr):\n    pid = tl.program_id(0)  # "root mean"',
    "a block-sparse layout, a basic block, the bearer of bad news",
    "basic blocked_implementation_v2_row",
    "# since release 0.3.4.1, and part 1.2.3.4.5, and 300.1.2.3",
    "std::memcpy(&v, row + i + 8 * k, sizeof v); a::be::ca f;",
]
_NAMES = ("token", "key", "tile", "acc", "offs", "secret_seed", "auth", "q", "row_ptr")
_MEMBERS = ("local", "dev", "io", "net", "info", "cluster", "internal", "x", "float32", "T", "to")
_FORMS = (
    "{a} = {b}.{m}",
    "{a}.{m} += {b}.{m}.{n} * 2",
    "auto {a} = {b}.{m}.{n};",
    "{a} = tl.load({b}_ptr + {a}.{m} * stride_{b}, mask={a}.{n} < N)",
    "if ({a}.{m} < {b}.{n}) {{ {b} = {a}.{m}-{b}.{n}; }}",
    "x = {a}@{b}.{m}",
    '{a} = "{b}"',
)


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secrets_are_taken_out(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert secret not in redact(f"// {text}\nint x;\n")


@pytest.mark.parametrize("text", CODE)
def test_source_code_is_left_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_hundreds_of_lines_like_those_of_kernels_are_left_as_they_are() -> None:
    rng = random.Random(4)
    lines = {
        form.format(
            a=rng.choice(_NAMES), b=rng.choice(_NAMES), m=m, n=rng.choice(_MEMBERS)
        )
        for form, m in product(_FORMS, _MEMBERS)
        for _ in range(4)
    }  # fmt: skip
    assert len(lines) >= 200
    assert [line for line in sorted(lines) if redact(line) != line] == []


def test_every_source_of_the_catalog_is_left_as_it_is() -> None:
    assert catalog.__file__ is not None
    files = [
        path
        for path in sorted(Path(catalog.__file__).parent.rglob("*"))
        if path.suffix in (".cpp", ".h", ".py")
    ]
    assert len(files) > 20
    for path in files:
        text = path.read_text("utf-8")
        assert redact(text) == text, path.name


def test_the_tests_own_kernels_are_left_as_they_are() -> None:
    hostile = Path(__file__).resolve().parents[2] / "hostile"
    for path in sorted(hostile.rglob("*.cpp")):
        text = path.read_text("utf-8")
        assert redact(text) == text, path.name


@pytest.mark.parametrize(
    ("letters", "length"),
    [
        (string.ascii_letters + string.digits, 32),
        (string.ascii_letters + string.digits, 20),
        (string.hexdigits[:16], 32),
        (string.hexdigits[:16], 64),
    ],
)
def test_of_keys_drawn_by_chance_hardly_one_survives_as_a_literal(
    letters: str, length: int
) -> None:
    rng = random.Random(length)
    survived = 0
    for number in range(2_000):
        value = "".join(rng.choices(letters, k=length))
        name = ("api_token", "SECRET", "auth_key", "clientSecret")[number % 4]
        text = (f'{name} = "{value}"', f"{name}: '{value}'", f'{{"{name}": "{value}"}}')[number % 3]
        survived += value in redact(text)
    assert survived <= 4, survived


@settings(deadline=None)
@given(st.text(max_size=200))
def test_redaction_ends_and_a_second_one_changes_nothing(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@settings(deadline=None)
@given(st.text(alphabet=string.printable, max_size=300), st.text("abcXYZ019_-", min_size=6))
def test_a_known_key_never_survives(text: str, key: str) -> None:
    assert key not in redactor([key])(f"{text}{key}{text}")
    assert key not in secrets_only([key])(f"{text}{key}{text}")


def test_answers_keep_all_but_what_is_known() -> None:
    text = "see /home/x/y and tile.local in 10.0.0.1, k3yk3y"
    assert secrets_only(["k3yk3y"])(text) == text.replace("k3yk3y", "[key]")
