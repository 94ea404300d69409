// The conversation: follows the thread, and loads earlier and later pages into a window of bounded size.
// What a person reads stays in place: only a page that is at its end scrolls with new entries.
import { loadFragment } from "./requests.js";
import { morphFrom } from "./morph.js";
import { loadOpenBodies } from "./journal.js";
import { localise } from "./times.js";
import { refresh } from "./live.js";

// An item has 25 elements on average, so a page has some 5,000.
const ITEMS_MAX = 200;
const NEAR_PX = 120;
// Entries before one that a link names. A page has 80, and a reply with its results fewer than 60.
const AROUND = 60;
// Entries, approvals and unknown outcomes have addresses.
const LINKED = /^#(entry|approval|outcome)-[\w-]+$/;

export function startConversation() {
  const talk = document.querySelector("[data-talk]");
  if (talk) new Conversation(talk);
  document.addEventListener("everlong:refresh", () => refresh());
  setInterval(countDown, 1000);
}

class Conversation {
  constructor(talk) {
    this.talk = talk;
    this.version = readVersion();
    this.toEnd = talk.querySelector("[data-to-end]");
    talk.addEventListener("click", (event) => {
      const link = event.target.closest("[data-load]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.load(link.dataset.load);
    });
    this.toEnd.addEventListener("click", () => this.goToEnd());
    document.addEventListener("updated", (event) => {
      if (event.target.id === "thread") this.follow();
    });
    document.addEventListener("everlong:to-end", () => this.goToEnd());
    document.addEventListener("scroll", () => this.showEnd(), { passive: true });
    addEventListener("hashchange", () => this.openLinked());
    history.scrollRestoration = "manual";
    if (LINKED.test(location.hash)) this.openLinked();
    else if (!/[?&](before|after)=/.test(location.search)) scrollToEnd();
    this.showEnd();
  }

  get list() {
    return this.talk.querySelector(":scope > [data-turns]");
  }

  get isNewest() {
    return this.list.dataset.newest === "true";
  }

  // Reads the newest entries again, once the thread has news. A page that a person has asked for comes
  // first.
  async follow() {
    const version = readVersion();
    if (version === this.version || this.asked) return;
    if (!this.isNewest) {
      this.toEnd.dataset.news = "";
      this.showEnd();
      return;
    }
    const fresh = await this.read(`first=${this.list.dataset.first}`);
    if (!fresh) return;
    this.version = version;
    const wasAtEnd = isAtEnd();
    this.keepInPlace(() => this.merge(fresh));
    if (wasAtEnd) scrollToEnd();
    else this.toEnd.dataset.news = "";
    this.showEnd();
  }

  merge(fresh) {
    const list = this.list;
    const firstSeq = Number(fresh.dataset.first);
    const isApart = firstSeq > Number(list.dataset.last) + 1;
    const from = isApart ? list.firstElementChild : [...list.children].find((each) => Number(each.dataset.seq) >= firstSeq);
    morphFrom(list, fresh, isApart ? list.firstChild : from || null);
    const empty = list.querySelector(":scope > [data-key=empty]");
    if (empty && list.children.length > 1) empty.remove();
    if (isApart) list.dataset.first = fresh.dataset.first;
    list.dataset.last = fresh.dataset.last;
    list.dataset.newest = fresh.dataset.newest;
    this.trim("top");
    this.update();
  }

  async load(where) {
    const { first, last } = this.list.dataset;
    const fresh = await this.ask({ before: `before=${first}`, after: `after=${last}`, newest: "" }[where]);
    if (!fresh) return;
    if (where === "newest") {
      this.replace(fresh);
      this.goToEnd();
      return;
    }
    const items = [...fresh.children];
    this.keepInPlace(() => {
      const list = this.list;
      if (where === "before") {
        list.prepend(...items);
        list.dataset.first = fresh.dataset.first;
        this.trim("bottom");
      } else {
        list.append(...items);
        list.dataset.last = fresh.dataset.last;
        list.dataset.newest = fresh.dataset.newest;
        this.trim("top");
      }
      this.update();
    });
    // The link that was used may be hidden now.
    (where === "before" ? items[items.length - 1] : items[0])?.querySelector("a, summary")?.focus({ preventScroll: true });
    this.showEnd();
  }

  // Opens the entry or the approval that the address names.
  async openLinked() {
    if (!LINKED.test(location.hash)) return;
    const id = location.hash.slice(1);
    const seq = Number(/^entry-(\d+)$/.exec(id)?.[1] || 0);
    if (seq && !document.getElementById(id)) {
      const fresh = await this.ask(`after=${Math.max(0, seq - AROUND)}`);
      if (fresh) this.replace(fresh);
    }
    const target = document.getElementById(id);
    if (!target) {
      if (!seq) scrollToEnd();
      return;
    }
    target.scrollIntoView({ block: "center" });
    target.classList.add("linked");
    setTimeout(() => target.classList.remove("linked"), 4000);
    target.querySelector("a, summary, input, button")?.focus({ preventScroll: true });
  }

  replace(fresh) {
    const list = this.list;
    list.replaceWith(fresh);
    this.version = readVersion();
    this.update();
  }

  // Reads a page for a person.
  async ask(query) {
    const mine = (this.asked = {});
    try {
      return await this.read(query);
    } finally {
      if (this.asked === mine) this.asked = null;
    }
  }

  // Reads a page. An older request in flight is given up.
  async read(query) {
    this.loading?.abort();
    const mine = (this.loading = new AbortController());
    const place = this.talk.querySelector("[data-talk-error]");
    try {
      const template = document.createElement("template");
      template.innerHTML = await loadFragment(`${this.list.dataset.url}&${query}`, { signal: mine.signal });
      if (mine.signal.aborted) return null;
      place.textContent = "";
      const fresh = template.content.querySelector("[data-turns]");
      localise(fresh);
      return fresh;
    } catch (error) {
      if (!mine.signal.aborted) place.textContent = error.message;
      return null;
    }
  }

  // Removes items beyond the bound from the end that is not read.
  trim(where) {
    const list = this.list;
    while (list.children.length > ITEMS_MAX) {
      if (where === "top") {
        list.firstElementChild.remove();
        list.dataset.first = list.firstElementChild.dataset.seq;
      } else {
        list.dataset.last = Number(list.lastElementChild.dataset.seq) - 1;
        list.dataset.newest = "false";
        list.lastElementChild.remove();
      }
    }
  }

  // Updates the links to the neighbouring pages, and reads what is open.
  update() {
    loadOpenBodies(this.list);
    const { first, last, newest } = this.list.dataset;
    const earlier = this.talk.querySelector("[data-earlier]");
    const later = this.talk.querySelector("[data-later]");
    earlier.hidden = Number(first) <= 1;
    later.hidden = newest === "true";
    setParameter(earlier.querySelector("a"), "before", first);
    setParameter(later.querySelector("a"), "after", last);
  }

  keepInPlace(change) {
    const anchor = [...this.list.children].find((each) => each.getBoundingClientRect().bottom > 0);
    const before = anchor?.getBoundingClientRect().top;
    change();
    if (anchor?.isConnected) scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: "instant" });
  }

  async goToEnd() {
    if (!this.isNewest) {
      const fresh = await this.ask("");
      if (!fresh) return;
      this.replace(fresh);
    }
    scrollToEnd();
    this.showEnd();
  }

  showEnd() {
    const isHere = this.isNewest && isAtEnd();
    if (isHere) delete this.toEnd.dataset.news;
    this.toEnd.hidden = isHere;
    this.toEnd.textContent = "news" in this.toEnd.dataset ? "New entries ↓" : "To the end ↓";
  }
}

function scrollToEnd() {
  scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
}

function isAtEnd() {
  return document.documentElement.scrollHeight - innerHeight - scrollY < NEAR_PX;
}

function readVersion() {
  return document.querySelector("[data-version]")?.dataset.version;
}

function setParameter(link, name, value) {
  const url = new URL(link.href);
  url.searchParams.set(name, value);
  link.href = url.pathname + url.search;
}

// Shows the time until the next attempt of a call.
function countDown() {
  for (const element of document.querySelectorAll("time[data-countdown]")) {
    const seconds = Math.ceil((new Date(element.dateTime) - Date.now()) / 1000);
    const text = seconds > 0 ? `in ${seconds} s` : "now";
    if (element.textContent !== text) element.textContent = text;
  }
}
