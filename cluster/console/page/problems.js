// What went wrong, and what to do about it.

import { ApiError, get } from "./api.js";
import { el, link } from "./dom.js";

/** What the page adds to the detail of an error, which says the rest. */
const ADVICE = {
  unreachable: "It is asked again every few seconds. Each node has this console.",
  no_answer: "Nothing is known of what was asked: look whether it was done before doing it again.",
  unauthenticated: "Nothing was changed. Sign out, and in again with a token that is valid.",
  unknown_outcome: "It may or may not have been done: look before doing it again.",
  request_timeout: "Try again.",
  overloaded: "Nothing was changed. Try again in a moment.",
  quota_exceeded: "Nothing was changed. Try again in a moment.",
  no_leader: "Nothing was changed. Try again once a node leads; the overview of each node tells.",
  disk_full: "Nothing was stored. Make room: keep messages of large topics for less time, or delete topics.",
  forbidden: "Nothing was changed.",
};

/**
 * The error as text with its code, advice, and a link to the leader where only that one answers.
 * @param {unknown} error
 */
export async function problem(error) {
  if (!(error instanceof ApiError)) {
    console.error(error);
    return [el("p", {}, `This page has failed: ${error}`), el("p", {}, "Load it again. If that does not help, it is an error of KeelMQ.")];
  }
  const nodes = [el("p", {}, error.message, " ", el("code", {}, error.code))];
  if (error.code in ADVICE) nodes.push(el("p", {}, ADVICE[error.code]));
  if (error.code === "leader_only") {
    const { leader_url: url } = await get("/v1/cluster").catch(() => ({}));
    if (/^https?:\/\//.test(url ?? "")) nodes.push(el("p", {}, link(`${url}/console${location.hash}`, `Open this view at ${url}`)));
  }
  return nodes;
}

/** A part of a view that could not be had, in its place; who is to sign in gets no view. @param {string} caption @param {unknown} error */
export async function missing(caption, error) {
  if (error instanceof ApiError && error.status === 401) throw error;
  return el("section", {}, el("h2", {}, caption), el("div", { class: "warn" }, await problem(error)));
}
