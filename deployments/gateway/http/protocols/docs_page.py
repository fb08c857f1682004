"""The page at `/docs`: the OpenAPI document rendered for reading, without anything from elsewhere.

One self-contained HTML page whose own small script fetches `/openapi.json` and shows each endpoint
with its parameters, examples as `curl` and answers; dark or light as the reader's system is. What
the document says is only ever set as text, never as markup.
"""

from __future__ import annotations

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --accent: #0a7ea4; }
@media (prefers-color-scheme: dark) { :root { --accent: #5cc8e8; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; text-transform: capitalize; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; }
summary { cursor: pointer; padding: .5rem .8rem; }
details > div { padding: 0 .8rem .8rem; border-top: 1px solid var(--line); }
.method { display: inline-block; min-width: 3.2rem; font-weight: 700; color: var(--accent); }
code, pre { font: .87rem/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .7rem; border-radius: .4rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
td { border-top: 1px solid var(--line); padding: .25rem .6rem .25rem 0; vertical-align: top; }
.soft { opacity: .75; }
"""

_SCRIPT = """
const make = (tag, text, parent, cls) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (cls) node.className = cls;
  parent.append(node);
  return node;
};
const follow = (doc, node) =>
  node && node.$ref ? node.$ref.slice(2).split('/').reduce((at, key) => at[key], doc) : node;
const schemaName = media => media && media.schema && media.schema.$ref
  ? media.schema.$ref.split('/').pop() : '';
const rows = (parent, title, list) => {
  if (!list.length) return;
  make('h4', title, parent);
  const table = make('table', undefined, parent);
  for (const [left, right] of list) {
    const line = make('tr', undefined, table);
    make('code', left, make('td', undefined, line));
    make('td', right, line);
  }
};
const quoted = text => "'" + text.replaceAll("'", "'\\\\''") + "'";
const curl = (doc, path, method, model, body) => {
  const url = doc.servers[0].url.replace(/\\/$/, '') + path.replace('{model}', model);
  return `curl -s ${method === 'post' ? '-X POST ' : ''}${quoted(url)}` +
    (body ? ` \\\\\\n  -H 'content-type: application/json' \\\\\\n  -d ${quoted(body)}` : '');
};
const operation = (doc, parent, path, method, item) => {
  const op = item[method];
  const box = make('details', undefined, parent);
  const head = make('summary', undefined, box);
  make('span', method.toUpperCase(), head, 'method');
  make('code', path, head);
  make('span', '  ' + op.summary, head, 'soft');
  const inside = make('div', undefined, box);
  const parameters = [...(item.parameters || []), ...(op.parameters || [])]
    .map(found => follow(doc, found));
  rows(inside, 'Parameters', parameters.map(
    p => [p.name, `${p.in}${p.required ? ', required' : ''}. ${p.description || ''}`]));
  const bodies = op.requestBody ? op.requestBody.content : {};
  rows(inside, 'Body', Object.entries(bodies).map(([type, media]) => [type, schemaName(media)]));
  const examples = Object.entries((bodies['application/json'] || {}).examples || {});
  const complete = path.includes('{version}') ? [] : examples;
  if (complete.length) make('h4', 'Examples', inside);
  for (const [model, example] of complete)
    make('pre', curl(doc, path, method, model, JSON.stringify(example.value)), inside);
  if (method === 'get' && !path.includes('{'))
    make('pre', curl(doc, path, method, '', ''), inside);
  rows(inside, 'Answers', Object.entries(op.responses).map(([status, answer]) => {
    const found = follow(doc, answer);
    const names = Object.keys(found.headers || {});
    const media = (found.content || {})['application/json'];
    return [status, [found.description, schemaName(media),
      names.length ? `Headers: ${names.join(', ')}.` : ''].filter(Boolean).join(' ')];
  }));
};
const show = doc => {
  const main = document.querySelector('main');
  main.textContent = '';
  make('h1', doc.info.title, main);
  make('p', `${doc.info.description} Version ${doc.info.version}.`, main, 'soft');
  for (const tag of doc.tags) {
    make('h2', tag.name, main);
    for (const [path, item] of Object.entries(doc.paths))
      for (const method of ['get', 'post'])
        if (item[method] && item[method].tags.includes(tag.name))
          operation(doc, main, path, method, item);
  }
  make('h2', 'schemas', main);
  for (const [name, schema] of Object.entries(doc.components.schemas)) {
    const box = make('details', undefined, main);
    make('code', name, make('summary', undefined, box));
    make('pre', JSON.stringify(schema, null, 2), make('div', undefined, box));
  }
};
fetch('/openapi.json').then(found => found.json()).then(show).catch(error => {
  document.querySelector('main').textContent = `/openapi.json could not be read: ${error}`;
});
"""


def docs_page() -> bytes:
    """The page, UTF-8."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Headrace</title><style>{_STYLE}</style></head>"
        '<body><main>Reading <a href="/openapi.json">/openapi.json</a> …</main>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    ).encode()
