// Calls of the public API, with the token that the user has given for this tab.

const TOKEN = "keelmq.token";

export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} detail */
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN));

export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** @param {string} path @param {Record<string, unknown>} [query] */
export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return (await call("GET", search.size ? `${path}?${search}` : path)).json();
}

/** @param {string} path @param {unknown} body */
export async function post(path, body) {
  return (await call("POST", path, body)).json();
}

/** @param {string} path @param {unknown} body */
export async function put(path, body) {
  return (await call("PUT", path, body)).json();
}

/** @param {string} path */
export async function remove(path) {
  await call("DELETE", path);
}

/** @param {string} method @param {string} path @param {unknown} [body] */
async function call(method, path, body) {
  const headers = new Headers();
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  let response;
  try {
    // Never along a redirect: the token is for this node, and a browser lets no page read another node's answer.
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), redirect: "manual" });
  } catch {
    throw new ApiError(0, "unreachable", "This node does not answer.");
  }
  if (response.type === "opaqueredirect") throw new ApiError(307, "leader_only", "Only the leader answers this.");
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new ApiError(response.status, problem.code ?? "error", problem.detail ?? `HTTP status ${response.status}`);
}
