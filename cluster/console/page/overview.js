// The cluster at a glance: alarms, nodes, rates.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { bytes, count, el, link, part, table, time } from "./dom.js";
import { lagColumns, none } from "./lists.js";
import { consoleOf, missing } from "./problems.js";

const RATES = "Messages a second in the cluster";
const rates = new Chart(RATES, { stored: "first", acknowledged: "second" });
const LAGS = "Groups with the largest lag";

export async function overview() {
  const [cluster, counters, lags] = await Promise.all([get("/v1/cluster"), get("/v1/cluster/counters").catch((error) => missing(RATES, error)), get("/v1/lags", { order: "lag", limit: 10 }).catch((error) => missing(LAGS, error))]);
  if (!(counters instanceof Node)) rates.counted(cluster.node_id, { stored: counters.appended_messages, acknowledged: counters.acknowledged_messages });
  const roles = (node) => (node.node_id === cluster.leader_id ? "leader" : node.membership);
  const answers = (node) => (node.node_id === cluster.node_id || node.connected ? "answers" : el("strong", { class: "bad" }, cluster.role === "leader" ? "does not answer" : "not connected to this node"));
  return [
    el("h1", {}, `Cluster ${cluster.cluster_id}`),
    el("p", {}, cluster.leader_id === null ? el("strong", { class: "bad" }, `Nobody leads: no write is accepted${cluster.waits_for ? `; ${cluster.waits_for}` : ""}. `) : `Node ${cluster.leader_id} leads in term ${cluster.term}. `, `${count(cluster.commit_index)} entries are committed, as far as node ${cluster.node_id} knows.`),
    table(
      "Alarms",
      [
        ["Severity", (alarm) => el("strong", { class: alarm.severity === "critical" ? "bad" : "warn" }, alarm.severity)],
        ["Alarm", (alarm) => alarm.code],
        ["Of", (alarm) => alarm.subject ?? ""],
        ["Since", (alarm) => time(alarm.since_ms)],
        ["What to do", (alarm) => alarm.detail],
      ],
      cluster.alarms,
      "No alarms at this node.",
    ),
    table(
      "Nodes",
      [
        ["Node", (node) => (consoleOf(node) ? link(consoleOf(node), node.node_id) : node.node_id)],
        ["Role", roles],
        ["State", answers],
        ["Entries behind", (node) => (cluster.role === "leader" && node.node_id !== cluster.node_id ? count(Math.max(0, cluster.durable_index - node.match_index)) : ""), true],
        ["Sync", (node) => (node.sync_ms === null ? "" : `${node.sync_ms} ms`), true],
        ["Disk free", (node) => (node.disk_free_bytes === null ? "" : el("span", { class: node.disk_is_low ? "bad" : undefined }, bytes(node.disk_free_bytes))), true],
        ["Version", (node) => node.version],
        ["Address", (node) => node.peer_address],
      ],
      cluster.nodes,
    ),
    counters instanceof Node ? counters : rates.draw(),
    lags instanceof Node ? lags : table(LAGS, [["Group", (group) => link(`#/groups/${part(group.group)}`, group.group)], ...lagColumns], lags.groups, none("No group lags.")),
  ];
}
