// What matters most of the accessibility rules: names, ids, references, heads, landmarks, contrast of 4.5.
(() => {
  const bad = [];
  const named = e => (e.getAttribute('aria-label') || e.textContent.trim() || e.title || (e.labels && e.labels.length) || e.getAttribute('aria-labelledby'));
  document.querySelectorAll('button, input, a, [role=slider], summary').forEach(e => { if (!named(e)) bad.push('no name: ' + e.outerHTML.slice(0, 80)); });
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach(id => bad.push('id twice: ' + id));
  document.querySelectorAll('[aria-describedby], [aria-labelledby]').forEach(e => (e.getAttribute('aria-describedby') || e.getAttribute('aria-labelledby')).split(' ').forEach(id => { if (!document.getElementById(id)) bad.push('no ' + id); }));
  document.querySelectorAll('svg').forEach(e => { if (!e.getAttribute('aria-label') && e.getAttribute('aria-hidden') !== 'true') bad.push('svg without a name'); });
  document.querySelectorAll('table').forEach(e => { if (!e.querySelector('th')) bad.push('table without heads'); });
  document.querySelectorAll('[role=slider]').forEach(e => ['aria-valuenow', 'aria-valuemin', 'aria-valuemax', 'tabindex'].forEach(n => { if (!e.hasAttribute(n)) bad.push('slider without ' + n); }));
  if (document.documentElement.lang !== 'en' || document.querySelectorAll('h1').length !== 1 || !document.querySelector('main')) bad.push('landmarks');
  const light = c => { const [r, g, b, a] = c.match(/[\d.]+/g).map(Number); return a === 0 ? null : [r, g, b].map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0); };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c.startsWith('rgb') && light(c) !== null) return light(c); if (c.startsWith('color(')) return light('rgb(' + c.match(/[\d.]+/g).slice(0, 3).map(v => 255 * v).join(',') + ')'); } return 1; };
  document.querySelectorAll('p, td, th, button, label, summary, small, h1, h2, h3, span, code').forEach(e => {
    if (!e.offsetParent || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) return;
    const one = light(getComputedStyle(e).color), two = behind(e), ratio = (Math.max(one, two) + .05) / (Math.min(one, two) + .05);
    if (ratio < 4.5 && !e.disabled) bad.push(`contrast ${ratio.toFixed(2)}: ` + e.outerHTML.slice(0, 80));
  });
  return [...new Set(bad)];
})()
