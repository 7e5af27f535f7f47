// The cluster's settings and members.

import { get, put } from "./api.js";
import { form, rights, why, wrong } from "./actions.js";
import { bytes, count, el, facts, table, time } from "./dom.js";

const MIB = 1024 * 1024;

/** What the form changes, as the API takes it. @param {any} found @param {Record<string, string>} values */
function changes(found, { reject, limit }) {
  const wanted = { reject_transactions: reject === "true", log_retention_bytes: Number(limit) < 0 ? -1 : Math.round(Number(limit) * MIB) };
  return /** @type {Record<string, any>} */ (Object.fromEntries(Object.entries(wanted).filter(([name, value]) => value !== found[name])));
}

/** @param {Record<string, any>} changed */
function questions({ reject_transactions: reject, log_retention_bytes: limit }) {
  const said = [
    reject === true && "Refuse new transactions in the whole cluster? Producers get the error transactions_rejected.",
    reject === false && "Accept new transactions in the whole cluster?",
    limit < 0 && "Keep the log without a limit, for as long as its topics say?",
    limit >= 0 && `Keep at most ${bytes(limit)} of the log? Older messages of all topics are removed, consumed or not.`,
  ].filter(Boolean);
  if (!said.length) throw wrong("Nothing is changed.");
  return said.join("\n\n");
}

export async function settings() {
  const [cluster, found, may] = await Promise.all([get("/v1/cluster"), get("/v1/cluster/settings"), rights("cluster")]);
  const limit = found.log_retention_bytes < 0 ? -1 : found.log_retention_bytes / MIB;
  return [
    el("h1", {}, "Settings and members"),
    facts([
      ["Cluster", cluster.cluster_id],
      ["Version of this node", cluster.version],
      ["Feature level in force", cluster.feature_level],
      ["Configuration", `log entry ${count(cluster.configuration_index)}`],
      ["Limit of the log", found.log_retention_bytes < 0 ? "none" : bytes(found.log_retention_bytes)],
      ["Transactions", found.reject_transactions ? el("strong", { class: "warn" }, "new ones are refused") : "are accepted"],
    ]),
    form({
      id: "settings",
      title: "Change the settings",
      note: "With a limit of the log, messages of all topics are removed once so much of the log was written since, consumed or not.",
      fields: [
        { name: "reject", label: "New transactions", value: String(found.reject_transactions), options: [["false", "are accepted"], ["true", "are refused"]] },
        { name: "limit", label: "MiB of the log that are kept at most; -1 is no limit", kind: "number", value: limit, required: true, more: { min: -1, step: "any" } },
      ],
      button: "Change",
      question: (values) => questions(changes(found, values)),
      run: async (values) => {
        await put("/v1/cluster/settings", { ...changes(found, values), ...why(values) });
        return ["Changed."];
      },
      denied: may("admin"),
    }),
    table(
      "Members",
      [
        ["Node", (node) => node.node_id, true],
        ["Membership", (node) => node.membership],
        ["Clients come to", (node) => node.url],
        ["Peers come to", (node) => node.peer_address],
        ["Version", (node) => node.version ?? ""],
        ["Feature levels", (node) => (node.feature_level_min === null ? "" : `${node.feature_level_min} to ${node.feature_level_max}`)],
      ],
      cluster.nodes,
    ),
    el("p", { class: "quiet" }, "Members change with keelmq cluster add-node, promote and remove-node, which check first what may go wrong."),
    table(
      "What the log is kept for",
      [
        ["Kept for", (each) => each.kind.replaceAll("_", " ")],
        ["Of", (each) => each.subject ?? ""],
        ["From entry", (each) => count(each.raft_index), true],
        ["Since", (each) => time(each.since_ms)],
        ["Size", (each) => bytes(each.bytes), true],
      ],
      cluster.log_holders,
      "Nothing but what is always kept.",
    ),
  ];
}
