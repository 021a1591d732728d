// Talking to the server. Every error becomes one sentence.

export async function call(method, path, content) {
  const options = { method, headers: {} };
  if (content instanceof Blob || ArrayBuffer.isView(content)) {
    options.body = content;
    options.headers["Content-Type"] = "application/octet-stream";
  } else if (content !== undefined) {
    options.body = JSON.stringify(content);
    options.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("the server does not answer; is gfss serve still running?");
  }
  if (!answer.ok) {
    const words = await answer.json().catch(() => ({}));
    const error = new Error(words.error || `the server answered ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  return answer;
}

export const get = async (path) => (await call("GET", path)).json();
export const post = async (path, content) => (await call("POST", path, content)).json();

export const imagePath = (id) => `/api/images/${encodeURIComponent(id)}`;
export const classPath = (name) => `/api/classes/${encodeURIComponent(name)}`;

// One byte per pixel with the headers that place it.
export async function pixels(method, path, content) {
  const answer = await call(method, path, content);
  const data = new Uint8Array(await answer.arrayBuffer());
  const header = (name) => Number(answer.headers.get(name) || 0);
  return {
    data,
    width: header("X-Width"),
    height: header("X-Height"),
    left: header("X-Left"),
    top: header("X-Top"),
    version: header("X-Version"),
    model: header("X-Model-Version"),
  };
}

// Waits for a job; `tell` hears of its progress.
export async function finished(job, tell = () => {}) {
  for (;;) {
    const now = await get(`/api/jobs/${job.id}`);
    tell(now);
    if (now.state === "done") return now.result;
    if (now.state === "failed") throw new Error(now.error);
    await new Promise((go) => setTimeout(go, 300));
  }
}
