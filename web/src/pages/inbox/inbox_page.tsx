import { useEffect, useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { entryText, markRead, newest, readInbox, unread, type InboxEntry } from "@/api/inbox";
import { whyNoSubmit } from "@/api/rights";
import { Time } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import styles from "./inbox_page.module.css";

/** Alerts of one's own runs and the ends of these runs, newest first. */
export function InboxPage() {
  const [older, setOlder] = useState<readonly InboxEntry[]>([]);
  const [next, setNext] = useState<string | null | undefined>(undefined); // undefined: that of the newest page
  const [error, setError] = useState<unknown>(null);
  const first = newest.value;
  const count = unread.value;
  useEffect(() => {
    document.title = `${count > 0 ? `(${count}) ` : ""}Inbox · Hopyard`;
    return () => {
      document.title = "Hopyard";
    };
  }, [count]);
  if (first === null) {
    return (
      <div class={page["page"]}>
        <Loading />
      </div>
    );
  }
  // entries that came move others from the newest page to the older ones
  const known = new Set(first.entries.map((entry) => entry.id));
  const entries = [...first.entries, ...older.filter((entry) => !known.has(entry.id))];
  const after = next === undefined ? first.next : next;
  const readMore = () => {
    setError(null);
    readInbox(after)
      .then((found) => {
        setOlder([...older, ...found.entries]);
        setNext(found.next);
      })
      .catch(setError);
  };
  const [top] = entries;
  return (
    <div class={page["page"]}>
      <div class={page["head"]}>
        <h1>Inbox</h1>
        <div class={page["bar"]}>
          <span class={page["quiet"]} role="status">
            {count === 0 ? "All is read" : `${count > 99 ? "99+" : count} unread`}
          </span>
          {top && count > 0 && (
            <Button
              disabled={whyNoSubmit() !== ""}
              title={whyNoSubmit()}
              onClick={() => {
                setError(null);
                markRead(top)
                  .then(() => setOlder((old) => old.map((entry) => ({ ...entry, unread: false }))))
                  .catch(setError);
              }}
            >
              Mark all as read
            </Button>
          )}
        </div>
      </div>
      {error !== null && <ErrorNotice error={error} />}
      {entries.length === 0 ? (
        <Empty
          title="No alerts yet, and no run has ended"
          command={'hop.alert("the loss is not finite", level="error")'}
        >
          <p>Alerts of your scripts and the ends of your runs come here.</p>
        </Empty>
      ) : (
        <ul class={styles["list"]} aria-label="alerts and ended runs">
          {entries.map((entry) => (
            <Entry key={entry.id} entry={entry} />
          ))}
        </ul>
      )}
      {after !== null && (
        <p>
          <Button onClick={readMore}>Older</Button>
        </p>
      )}
    </div>
  );
}

function Entry({ entry }: { entry: InboxEntry }) {
  const { title, text } = entryText(entry);
  const kind = entry.kind === "alert" ? `alert, ${entry.level}` : "end";
  return (
    <li class={entry.unread ? styles["unread"] : undefined} data-level={entry.level}>
      <span class={styles["dot"]} role="img" aria-label={entry.unread ? "unread" : "read"} />
      <div class={styles["what"]}>
        <p>
          <Link href={`/runs/${entry.run}`} title={entry.name}>
            <Name text={entry.label || entry.name} />
          </Link>{" "}
          <span class={styles["title"]} title={kind}>
            {title}
          </span>
        </p>
        {text !== "" && <p class={styles["text"]}>{text}</p>}
      </div>
      <Time at={entry.at} />
    </li>
  );
}
