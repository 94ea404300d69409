// DOM morphing: changes one tree into another, and keeps focus, scroll and open details.

// Changes the children of `old` into those of `fresh`. Returns the keyed elements that changed.
export function morph(old, fresh) {
  const changed = new Set();
  morphChildren(old, fresh, changed);
  return changed;
}

// Changes the children of `old` from one on into those of `fresh`, and keeps the earlier ones.
export function morphFrom(old, fresh, first) {
  morphChildren(old, fresh, new Set(), first);
}

function morphChildren(old, fresh, changed, first = old.firstChild) {
  const byKey = new Map();
  for (let node = first; node; node = node.nextSibling) if (node.dataset && node.dataset.key) byKey.set(node.dataset.key, node);
  let at = skipBlanks(first);
  for (const want of [...fresh.childNodes]) {
    if (isBlank(want)) continue;
    const key = want.dataset && want.dataset.key;
    const same = key ? byKey.get(key) : at;
    if (same && isAlike(same, want) && (key || !(same.dataset && same.dataset.key))) {
      if (same === at) at = skipBlanks(at.nextSibling);
      else old.insertBefore(same, at);
      morphNode(same, want, changed);
    } else {
      old.insertBefore(want, at);
      if (key) changed.add(want);
    }
  }
  while (at) {
    const gone = at;
    at = skipBlanks(at.nextSibling);
    gone.remove();
  }
}

// Blanks between elements have no meaning; templates leave some.
function isBlank(each) {
  return each.nodeType === Node.TEXT_NODE && each.nodeValue.trim() === "" && each.parentNode.children?.length > 0;
}

function skipBlanks(each) {
  let at = each;
  while (at && isBlank(at)) at = at.nextSibling;
  return at;
}

function isAlike(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName;
}

function morphNode(old, want, changed) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== want.nodeValue) old.nodeValue = want.nodeValue;
    return;
  }
  // Keep contents that a script loaded or the user typed.
  if (old.hasAttribute("data-kept")) return;
  if (old.dataset.key && old.dataset.state !== want.dataset.state) changed.add(old);
  for (const { name } of [...old.attributes]) {
    if (!want.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.nodeName === "TIME" && want.dateTime === old.dateTime) return;
  morphChildren(old, want, changed);
}
