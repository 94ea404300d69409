"""Every code block of the documents runs in a test, or is marked with the service that it needs."""

import json
import re
from pathlib import Path

from ruamel.yaml import YAML
from temporalio.envconfig import ClientConfig

from everlong.telemetry.spans import THREAD
from tests.support.document_blocks import DATA, OWNERS, ROOT, Block, list_pages, read_blocks

# Pages that `tests/server/test_document_blocks.py` runs may hold these, and output.
RUN = ("sh", "console", "python", "sql")
MARKED_MAX = 13
SERVICES = {
    "Docker",
    "Kubernetes",
    "Langfuse",
    "Phoenix",
    "Temporal Cloud",
}


def list_blocks() -> list[Block]:
    return [block for page in list_pages() for block in read_blocks(page)]


def find_block(page: str, language: str) -> str:
    [found] = [each.text for each in read_blocks(page) if each.language == language]
    return found


def test_every_block_has_a_test_or_a_mark() -> None:
    violations = []
    for block in list_blocks():
        owned = any(block.page.startswith(page) for page in OWNERS)
        known = block.language in RUN or (block.page, block.language) in DATA
        if block.is_code and not (owned or known or block.needs):
            violations.append(f"{block.place}: no test runs {block.language}")
    assert violations == []


def test_blocks_without_a_test_are_few_and_say_which_service_they_need() -> None:
    marked = [block for block in list_blocks() if block.needs]
    assert {block.needs for block in marked} <= SERVICES
    assert len(marked) <= MARKED_MAX < len(list_blocks()) / 8


def test_every_mark_is_above_a_block() -> None:
    lines = [
        line.strip() for page in list_pages() for line in (ROOT / page).read_text().splitlines()
    ]
    marks = sum(line.startswith("<!-- not run") for line in lines)
    assert marks == sum(bool(block.needs) for block in list_blocks())


def test_a_test_that_owns_blocks_names_their_page() -> None:
    owned = {**OWNERS, **{page: test for (page, _), test in DATA.items()}}
    missing = [
        f"{test} does not name {page}"
        for page, test in owned.items()
        if Path(page).name not in (ROOT / test).read_text().replace('" / "', "/")
    ]
    assert missing == []


def test_an_image_with_agents_is_built_on_the_image_of_the_compose_file() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    for page in ("docs/how-to/deploy.md", "docs/how-to/kubernetes.md"):
        instructions = dict(
            line.split(" ", 1) for line in find_block(page, "dockerfile").splitlines()
        )
        assert f"image: {instructions['FROM']}\n" in compose
        source, target = instructions["COPY"].split()
        assert source == "my_agents.py"
        assert instructions["ENV"] == f"PYTHONPATH={target.rstrip('/')}"


def test_the_policy_of_a_bucket_is_json_and_allows_nothing_beyond_its_prefix() -> None:
    listing, objects = json.loads(find_block("docs/how-to/deploy.md", "json"))["Statement"]
    assert listing["Resource"] == "arn:aws:s3:::bucket"
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["prefix/*"]}}
    assert objects["Resource"] == "arn:aws:s3:::bucket/prefix/*"


def test_a_collector_copies_the_attribute_that_spans_have() -> None:
    found = YAML(typ="safe").load(find_block("docs/how-to/observe.md", "yaml"))
    [statements] = found["processors"]["transform"]["trace_statements"]
    [statement] = statements["statements"]
    target, source = re.findall(r'attributes\["(.+?)"\]', statement)
    assert (target, source) == ("langfuse.session.id", THREAD)


def test_a_profile_for_temporal_cloud_is_read_by_the_sdk(tmp_path: Path) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text(find_block("docs/how-to/temporal-cloud.md", "toml"))
    profile = ClientConfig.load(config_source=file).profiles["cloud"]
    assert (profile.address, profile.namespace) == ("agents.a1b2c.tmprl.cloud:7233", "agents.a1b2c")
    assert profile.api_key
    assert profile.tls is not None
    assert str(profile.tls.client_cert) == "/etc/everlong/tls/tls.crt"
