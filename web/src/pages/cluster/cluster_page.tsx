import { useSearchParams } from "wouter-preact";
import pageStyles from "@/parts/page.module.css";
import { TabLinks } from "@/parts/tab_links";
import { NodeView } from "./node_view";
import { NodesTab } from "./nodes_tab";
import { QueueView } from "./queue_view";
import { QueuesTab } from "./queues_tab";
import { ReservationsTab } from "./reservations_tab";
import { TimelineTab } from "./timeline_tab";
import { UsageTab } from "./usage_tab";
import { WaitingTab } from "./waiting_tab";

const TABS = [
  { key: "nodes", title: "Nodes" },
  { key: "queues", title: "Queues" },
  { key: "waiting", title: "Waiting" },
  { key: "reservations", title: "Reservations" },
  { key: "timeline", title: "Timeline" },
  { key: "usage", title: "Usage" },
] as const;
type Tab = (typeof TABS)[number]["key"];

/** The cluster: `/cluster?tab=nodes`. What a tab shows is in the address. */
export function ClusterPage() {
  const [address] = useSearchParams();
  const tab: Tab = TABS.find((each) => each.key === address.get("tab"))?.key ?? "nodes";
  return (
    <div class={pageStyles["page"]}>
      <header class={pageStyles["head"]}>
        <h1>Cluster</h1>
        <TabLinks
          label="cluster"
          current={tab}
          tabs={TABS.map(({ key, title }) => ({ key, title, href: `/cluster?tab=${key}` }))}
        />
      </header>
      {tab === "nodes" && (address.has("node") ? <NodeView id={address.get("node") ?? ""} /> : <NodesTab />)}
      {tab === "queues" &&
        (address.has("queue") ? <QueueView name={address.get("queue") ?? ""} /> : <QueuesTab />)}
      {tab === "waiting" && <WaitingTab />}
      {tab === "reservations" && <ReservationsTab />}
      {tab === "timeline" && <TimelineTab />}
      {tab === "usage" && <UsageTab />}
    </div>
  );
}
