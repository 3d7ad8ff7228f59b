// Talking to the server: everything goes through here, so that every change carries the viewer's own header.

export async function getJson(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

export async function post(path, content) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-PAMS-View": "1" },
    body: JSON.stringify(content),
  });
  const type = answer.headers.get("Content-Type") || "";
  const found = type.startsWith("application/json") ? await answer.json() : { problem: await answer.text() };
  return { ok: answer.ok, ...found };
}

// The answer of /heat: length of a JSON header, the header, then float32 columns x, y and one per layer.
export async function getHeat(key) {
  const answer = await fetch(`/heat/${key}`);
  if (!answer.ok) throw new Error(await answer.text());
  const data = await answer.arrayBuffer();
  const length = new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
  const column = (index) => new Float32Array(data, 4 + length + 4 * header.n * index, header.n);
  const layers = header.layers.map((layer, index) => ({ ...layer, values: column(index + 2) }));
  return { n: header.n, side: header.tile_px0, grid: header.grid, notes: header.notes, evidence: header.evidence, x: column(0), y: column(1), layers };
}
