// Controls without a name, labels that lead nowhere, ids twice, what is inline.
() => {
  const found = [];
  const seen = (e) => e.checkVisibility({ visibilityProperty: true });
  const name = (e) => {
    const by = e.getAttribute('aria-labelledby');
    if (by) return by.split(' ').map((id) => document.getElementById(id)?.textContent || '').join(' ').trim();
    const own = e.getAttribute('aria-label') || (e.labels && [...e.labels].map((l) => l.textContent).join(' '));
    return (own || (['BUTTON', 'A', 'SUMMARY'].includes(e.tagName) ? e.textContent : '')).trim();
  };
  for (const e of document.querySelectorAll('button, a[href], input:not([type=hidden]), select, textarea, summary')) {
    if (seen(e) && !name(e)) found.push('no name: ' + e.outerHTML.slice(0, 120));
  }
  for (const e of document.querySelectorAll('svg[role=img], dialog, section, nav')) {
    if (seen(e) && !name(e)) found.push('no name: ' + e.outerHTML.slice(0, 120));
  }
  for (const e of document.querySelectorAll('label[for]')) {
    if (!document.getElementById(e.htmlFor)) found.push('label for nothing: ' + e.htmlFor);
  }
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  for (const id of new Set(ids)) {
    if (ids.filter((other) => other === id).length > 1) found.push('id twice: ' + id);
  }
  if (document.querySelectorAll('h1').length !== 1) found.push('not one h1');
  if (document.querySelectorAll('main').length !== 1) found.push('not one main');
  for (const table of document.querySelectorAll('table')) {
    if ([...table.querySelectorAll('th')].some((th) => !th.scope)) found.push('a head without scope');
  }
  // A screenshot of Playwright leaves an empty attribute on fields.
  if (document.querySelectorAll('[style]:not([style=""]), script:not([src]), style').length) found.push('something inline');
  return found;
}
