// The audit of this node: who changed what, and who was denied.

import { get } from "./api.js";
import { rights } from "./actions.js";
import { count, el, link, part, table, time } from "./dom.js";
import { next } from "./lists.js";
import { consoleOf } from "./problems.js";

/** @type {Array<[string, string]>} */
const OUTCOMES = [["", "any"], ["done", "done"], ["failed", "failed"], ["denied", "denied"], ["redirected", "redirected"], ["begun", "begun"]];
/** @type {Array<[string, string]>} */
const SPANS = [["", "all that is kept"], ["3600000", "the last hour"], ["86400000", "the last day"], ["604800000", "the last 7 days"]];
const FIELDS = ["principal", "outcome", "route", "request_id", "span"];

export async function audit(_, query) {
  const refused = (await rights("cluster"))("admin");
  if (refused) return [el("h1", {}, "Audit"), el("p", { class: "warn" }, refused)];
  const { span = "", ...wanted } = Object.fromEntries(FIELDS.map((name) => [name, query.get(name) ?? ""]));
  const [page, cluster] = await Promise.all([
    get("/v1/audit", { ...wanted, since_ms: span ? Date.now() - Number(span) : "", limit: 100, after: query.get("after") }),
    get("/v1/cluster"),
  ]);
  return [
    el("h1", {}, `Audit of node ${page.node_id}`),
    el("p", {}, "Each node has what it was asked; keelmq audit list shows all nodes together. ", others(cluster, page.node_id)),
    ...(page.auth === "off" ? [el("p", { class: "warn" }, "Authentication is off, so new records name nobody.")] : []),
    filters(query),
    table(
      "The newest first",
      [
        ["Time", (each) => time(each.at_ms)],
        ["Principal", (each) => each.principal],
        ["From", (each) => each.address],
        ["Call", (each) => el("code", {}, `${each.method} ${each.path}`)],
        ["Outcome", outcome],
        ["By and why", (each) => [each.operator, each.reason].filter(Boolean).join(": ")],
        ["Entry", (each) => (each.raft_index === null ? "" : count(each.raft_index)), true],
        ["Request", (each) => each.request_id ?? ""],
      ],
      page.records,
      page.next ? "Nothing in the part that was searched." : "Nothing that matches.",
    ),
    ...(page.unreadable ? [el("p", { class: "warn" }, `${count(page.unreadable)} lines or files cannot be read.`)] : []),
    ...next(page.next, (after) => address({ ...Object.fromEntries(query), after })),
  ];
}

/** Links to the same view at the other nodes, since a browser lets no page read what they answer. */
function others(cluster, own) {
  const known = cluster.nodes.filter((each) => each.node_id !== own && consoleOf(each));
  return known.flatMap((each) => [link(`${consoleOf(each)}${location.hash}`, `Node ${each.node_id}`), " "]);
}

function outcome(record) {
  const what = record.outcome === "denied" && record.resource ? `${record.action} ${record.resource}` : record.code;
  const text = [record.outcome, what, record.permitted ? "let through, because auth is permissive" : "", record.detail].filter(Boolean).join(", ");
  const missing = record.missing_before ? el("p", { class: "warn" }, `${count(record.missing_before)} records before this one could not be kept.`) : "";
  return el("span", {}, el("span", { class: record.outcome === "denied" ? "bad" : undefined }, text), missing);
}

function filters(query) {
  const inputs = [
    field("principal", "Principal", query),
    choice("outcome", "Outcome", OUTCOMES, query),
    field("route", "In method and path", query),
    field("request_id", "Request id", query),
    choice("span", "Time", SPANS, query),
  ];
  const go = (event) => {
    event.preventDefault();
    location.hash = address(Object.fromEntries(inputs.map(([, input]) => [input.name, input.value.trim()])));
  };
  return el("form", { onsubmit: go, class: "row" }, inputs.flatMap(([label, input]) => [el("label", { for: input.id }, label), input]), el("button", {}, "Filter"));
}

/** @returns {[string, HTMLInputElement]} */
function field(name, label, query) {
  return [label, /** @type {any} */ (el("input", { id: `audit-${name}`, name, value: query.get(name) ?? "", autocomplete: "off" }))];
}

/** @returns {[string, HTMLInputElement]} */
function choice(name, label, options, query) {
  const given = query.get(name) ?? "";
  return [label, /** @type {any} */ (el("select", { id: `audit-${name}`, name }, options.map(([value, text]) => el("option", { value, selected: value === given }, text))))];
}

const address = (values) => {
  const given = Object.entries(values).filter(([, value]) => value);
  return `#/audit${given.length ? "?" : ""}${given.map(([name, value]) => `${name}=${part(value)}`).join("&")}`;
};
