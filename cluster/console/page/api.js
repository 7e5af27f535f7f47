// Calls of the public API, with the token that the user has given for this tab.

const TOKEN = "keelmq.token";
/** Age in s that an answer may have when a view is drawn anew: what many pages ask for at a time is made once. */
const AGE_MAX_S = 2;
let isOfAMoment = false;
/** @type {WeakMap<object, number>} the time on the page's clock as of which an answer is */
const times = new WeakMap();

/**
 * What `ask` returns. The requests that it makes at once take answers of a moment ago; forms and their previews do not.
 * @template T @param {() => T} ask @returns {T}
 */
export function ofAMoment(ask) {
  isOfAMoment = true;
  try {
    return ask();
  } finally {
    isOfAMoment = false;
  }
}

/** The time on the page's clock, in ms, as of which the answer is. @param {object} answer */
export const asOf = (answer) => times.get(answer) ?? performance.now();

/** Time in ms in which an answer has to be there. A change may wait for the cluster for as long as a node lets it. */
const [READ_MAX_MS, CHANGE_MAX_MS] = [10_000, 60_000];

export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} detail @param {boolean} [isOfChange] of a request that was to change something */
  constructor(status, code, detail, isOfChange = false) {
    super(detail);
    this.status = status;
    this.code = code;
    this.isOfChange = isOfChange;
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN));

/** Whether a request can carry the text as its token. @param {string} text */
export const isToken = (text) => /^[!-~]+$/.test(text);

export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

/** @param {string} path @param {Record<string, unknown>} query */
function address(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = String(new URLSearchParams(given.map(([name, value]) => [name, String(value)])));
  return search ? `${path}?${search}` : path;
}

/** @param {string} path @param {Record<string, unknown>} [query] */
export async function get(path, query = {}) {
  return call("GET", address(path, query));
}

/** @param {string} path @param {unknown} body */
export async function post(path, body) {
  return call("POST", path, body);
}

/** @param {string} path @param {unknown} body */
export async function put(path, body) {
  return call("PUT", path, body);
}

/** @param {string} path @param {Record<string, unknown>} [query] */
export async function remove(path, query = {}) {
  await call("DELETE", address(path, query));
}

/**
 * What the node answers; undefined where that is nothing. A node that hangs is one that does not answer.
 * @param {string} method @param {string} path @param {unknown} [body]
 */
async function call(method, path, body) {
  const headers = new Headers();
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  if (isOfAMoment) headers.set("Cache-Control", `max-age=${AGE_MAX_S}`);
  const signal = /** @type {any} */ (AbortSignal).timeout(method === "GET" ? READ_MAX_MS : CHANGE_MAX_MS);
  let response, text;
  try {
    // Never along a redirect: the token is for this node, and a browser lets no page read another node's answer.
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), redirect: "manual", signal });
    text = await response.text();
  } catch {
    throw new ApiError(0, method === "GET" ? "unreachable" : "no_answer", "This node does not answer.");
  }
  if (response.type === "opaqueredirect") throw new ApiError(307, "leader_only", "Only the leader answers this.");
  const answer = parsed(text);
  if (answer instanceof Object) times.set(answer, performance.now() - Number(response.headers.get("KeelMQ-Age-Ms") ?? 0));
  if (response.ok) return answer;
  throw new ApiError(response.status, answer?.code ?? "error", answer?.detail ?? `HTTP status ${response.status}`, method !== "GET");
}

/** The content of an answer; undefined if it is none, as from something between this page and the node. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
