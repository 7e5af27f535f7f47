// The cluster's settings and members.

import { get, put } from "./api.js";
import { form, rights } from "./actions.js";
import { bytes, count, el, facts, table, time } from "./dom.js";

export async function settings() {
  const [cluster, found, may] = await Promise.all([get("/v1/cluster"), get("/v1/cluster/settings"), rights("cluster")]);
  return [
    el("h1", {}, "Settings and members"),
    facts([
      ["Cluster", cluster.cluster_id],
      ["Version of this node", cluster.version],
      ["Feature level in force", cluster.feature_level],
      ["Configuration", `log entry ${count(cluster.configuration_index)}`],
      ["Transactions", found.reject_transactions ? el("strong", { class: "warn" }, "new ones are refused") : "are accepted"],
    ]),
    form({
      id: "settings",
      title: "Change the settings",
      fields: [{ name: "reject", label: "New transactions", value: String(found.reject_transactions), options: [["false", "are accepted"], ["true", "are refused"]] }],
      button: "Change",
      question: ({ reject }) => (reject === "true" ? "Refuse new transactions in the whole cluster? Producers get the error transactions_rejected." : "Accept new transactions in the whole cluster?"),
      run: async ({ reject }) => {
        await put("/v1/cluster/settings", { reject_transactions: reject === "true" });
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
