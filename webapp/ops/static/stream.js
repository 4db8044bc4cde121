// Server-sent events over fetch, since EventSource cannot send the token.

export class Unauthorised extends Error {}

let token = "";
export const useToken = (given) => { token = given; };
export const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

// Calls `on(name, data)` for each event, until the stream ends. Throws when it cannot be opened.
async function read(path, on, signal) {
  const answer = await fetch(path, { headers: headers(), signal, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new Unauthorised((await answer.json()).message);
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s)));
      if (fields.data) on(fields.event, JSON.parse(fields.data));
    }
  }
}

// Reads for ever; calls `lost(error)` at each break, which returns whether to try again.
export async function follow(path, on, lost) {
  for (let pause = 500; ; pause = Math.min(8000, pause * 2)) {
    let error = null;
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), 15000);
    try {
      await read(path, (name, data) => {
        pause = 500;
        clearTimeout(timer);
        // A server that is gone sends nothing; a live one sends an event every two seconds.
        timer = setTimeout(() => silence.abort(), 15000);
        on(name, data);
      }, silence.signal);
    } catch (caught) {
      error = caught;
    }
    clearTimeout(timer);
    if (!lost(error)) return;
    await new Promise((resolve) => { setTimeout(resolve, pause); });
  }
}

async function ask(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options, headers: { ...headers(), ...options.headers } });
  const body = await answer.json();
  if (answer.status === 401) throw new Unauthorised(body.message);
  if (!answer.ok) throw new Error(body.message);
  return body;
}

export const act = (name, given, confirm) => ask(`/ops/actions/${name}`, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ arguments: given, confirm }),
});

export const explained = (id) => ask(`/ops/explain/${encodeURIComponent(id)}`, {});
