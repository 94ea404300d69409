"""The names in a transcript of the corpus: words, files, ids."""

import random
import re
from typing import Final

from bench.evidence_phrases import split

# Syllables of synthetic names.
_SYLLABLES: Final = split(
    "al; be; ca; di; eo; fu; ga; he; ii; jo; ka; le; mu; ni; oo; pe; ra; si; to; uu; ve; wa; zo"
)
# Words of logs, tables, mails and pages.
_WORDS: Final = split(
    """
    account; active; address; after; agent; amount; answer; attempt; average; backup; balance;
    batch; because; before; between; branch; broken; buffer; build; cache; called; cannot;
    carrier; change; channel; charge; check; client; close; cluster; column; commit; compare;
    config; connection; content; context; copy; count; create; current; customer; daily; data;
    default; delay; delete; deliver; design; detail; device; different; disk; document; domain;
    download; early; effect; empty; enabled; engine; error; event; every; exact; example;
    expected; export; failed; feature; field; file; filter; final; first; flag; flush; folder;
    format; forward; found; frame; from; function; general; global; graph; group; handler; header;
    health; history; host; image; import; include; index; initial; input; insert; inside;
    instance; integer; internal; invalid; invoice; item; journal; kernel; label; language; large;
    later; latency; layer; length; level; limit; line; list; listener; load; local; lock; lookup;
    machine; main; manager; market; master; matched; maximum; measure; member; memory; merge;
    message; method; metric; middle; minimum; missing; mobile; model; module; monitor; network;
    never; node; normal; notice; number; object; offset; often; online; open; operation; option;
    order; origin; output; owner; package; page; paper; parent; parser; partial; pass; patch;
    path; payment; pending; period; phase; plain; plan; point; policy; pool; port; position;
    present; price; primary; process; product; profile; program; project; proposal; provider;
    public; query; queue; quota; random; range; rate; reader; reason; receive; record; reduce;
    region; release; remote; render; repeat; replica; report; request; reset; resource; response;
    result; retry; return; review; role; rollback; round; route; rule; runner; sample; scale;
    schedule; schema; scope; script; search; second; section; security; segment; select; sender;
    series; server; service; session; setting; several; shard; shared; should; signal; similar;
    simple; single; size; skip; slow; small; socket; source; space; split; stage; standard; start;
    state; status; step; storage; stream; string; strong; study; subject; success; suite; support;
    switch; system; table; target; task; team; template; test; text; thread; ticket; timeout;
    today; token; total; trace; track; transfer; trigger; type; unique; unit; unknown; update;
    upload; usage; user; valid; value; vendor; version; view; volume; warning; weekly; weight;
    window; without; worker; writer; yesterday; zone
    """
)
# Slots: so many hex digits, so many decimal digits, a name.
_SLOT: Final = re.compile(r"<([hnw])(\d*)>")
_ID_FORMS: Final = {
    "coding": split("<h8>; <h40>; ENG-<n4>; CVE-2024-<n5>"),
    "ops": split("""
        <h8>-<h4>-<h4>-<h4>-<h12>; <w>-<h9>-<h5>; i-<h17>; 10.<n2>.1<n2>.<n2>; INC-<n5>; req_<h12>
    """),
    "data": split("job_<w>_<h8>; <h8>-<h4>-<h4>-<h4>-<h12>; DQ-<n3>; run-2024-1<n1>-1<n1>-<h6>"),
    "support": split("ORD-<n6>; TCK-<n5>; <w>.<w>@example.org; ch_<h14>; INV-2024-<n4>"),
    "research": split("10.<n4>/<h8>.<n3>; arXiv:2<n3>.1<n4>; <w>201<n1><h4>"),
}
_PATH_FORMS: Final = {
    "coding": split(r"""
        src/*.py; tests/unit/*.py; web/app/*.tsx; pkg/*.go; docs/*.md; *.toml;
        C:\build\agent\*.log; /usr/local/lib/*.so
    """),
    "ops": split("""
        /etc/*.conf; /var/log/*.log; deploy/k8s/*.yaml; terraform/modules/*.tf; /srv/*/current;
        https://grafana.example.org/d/*/panel; s3://backups/*.tar.gz
    """),
    "data": split("""
        s3://lake/raw/*.parquet; models/marts/*.sql; /mnt/exports/*.csv; notebooks/*.ipynb;
        gs://dwh-stage/*.avro; dags/*.py
    """),
    "support": split(r"""
        https://help.example.org/articles/*; /uploads/tickets/*.pdf; macros/*.txt; exports/*.csv;
        \\files\billing\*.xlsx
    """),
    "research": split("""
        https://papers.example.org/abs/*; notes/*.md; pdf/*.pdf; ~/replication/*.ipynb;
        https://github.example.org/*/README.md; data/splits/*.jsonl
    """),
}


class World:
    """The names of one transcript: files, ids, hosts. What is drawn of them is noted."""

    def __init__(self, source: random.Random, domain: str) -> None:
        self.random = source
        self.domain = domain
        self.paths: dict[str, None] = {}
        self.commands: dict[str, None] = {}
        self.ids: dict[str, None] = {}
        self._files = [self._new_path() for _ in range(source.randint(60, 110))]
        self._ids = [self.new_id() for _ in range(source.randint(40, 70))]
        self.ids.clear()

    def name(self) -> str:
        """Return a made-up word, such as things are named by."""
        return "".join(self.random.choices(_SYLLABLES, k=self.random.randint(2, 4)))

    def word(self) -> str:
        """Return a word."""
        return self.random.choice(_WORDS)

    def path(self) -> str:
        """Return a file that there is."""
        found = self.random.choice(self._files)
        self.paths[found] = None
        return found

    def command(self, text: str) -> str:
        """Note a command."""
        self.commands[text] = None
        return text

    def known_id(self) -> str:
        """Return an id that turns up more than once."""
        found = self.random.choice(self._ids)
        self.ids[found] = None
        return found

    def new_id(self) -> str:
        """Return an id in one of the forms of this kind of work."""
        return self.planted_id(self.random.choice(_ID_FORMS[self.domain]))

    def planted_id(self, form: str) -> str:
        """Return an id of a form."""
        found = _SLOT.sub(lambda slot: self._filled(slot[1], int(slot[2] or 0)), form)
        self.ids[found] = None
        return found

    def _filled(self, kind: str, digits: int) -> str:
        if kind == "w":
            return self.name()
        if kind == "n":
            return str(self.random.randint(10 ** (digits - 1), 10**digits - 1))
        found = "".join(self.random.choices("0123456789abcdef", k=digits))
        # Digits alone would be a number, and letters alone a word.
        return f"3f{found[2:]}" if found.isdigit() or found.isalpha() else found

    def _new_path(self) -> str:
        form = self.random.choice(_PATH_FORMS[self.domain])
        parts = [self.name() for _ in range(self.random.randint(1, 3))]
        parts[-1] += self.random.choice(["", f"_{self.word()}", f"-{self.word()}"])
        return form.replace("*", ("\\" if "\\" in form else "/").join(parts))
