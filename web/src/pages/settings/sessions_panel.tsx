import { useState } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { session } from "@/api/session";
import { allPages } from "@/api/runs";
import { ActionDialog } from "@/parts/action_dialog";
import { Time } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { DataTable, type DataColumn } from "@/parts/data_table";
import { Name } from "@/parts/name";
import { ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { addressText } from "./address_text";
import styles from "./settings.module.css";

type Entry = Schemas["SessionEntryOut"];

/** The browsers that are logged in as the user: list, and log out one or all others. */
export function SessionsPanel() {
  const [asked, setAsked] = useState<Entry | "others" | null>(null);
  const sessions = usePolled(
    "sessions",
    async () => {
      const pages = await allPages<Schemas["SessionsOut"]>((after) =>
        data(api.GET("/api/v1/sessions", { params: { query: after === null ? {} : { after } } })),
      );
      return pages.flatMap((each) => each.sessions);
    },
    () => null,
  );
  const isAdmin = session.value?.scopes.includes("admin") === true;
  const mayEnd = (entry: Entry) => !entry.current && (isAdmin || entry.token === session.value?.token);
  const columns: DataColumn<Entry>[] = [
    {
      key: "browser",
      title: "Browser",
      value: (entry) => entry.browser,
      cell: (entry) => (
        <>
          <Name text={entry.browser || "unknown browser"} />{" "}
          {entry.current && <span class={page["quiet"]}>this browser</span>}
        </>
      ),
    },
    {
      key: "address",
      title: "Address",
      value: (entry) => entry.address,
      cell: (entry) => <Name text={addressText(entry.address)} />,
    },
    {
      key: "token",
      title: "Token",
      value: (entry) => entry.token_name,
      cell: (entry) => <Name text={entry.token_name || entry.token} />,
    },
    {
      key: "created",
      title: "Logged in",
      value: (entry) => entry.created_at,
      cell: (entry) => <Time at={entry.created_at} />,
    },
    {
      key: "used",
      title: "Last used",
      value: (entry) => entry.used_at,
      cell: (entry) => (entry.used_at === null ? "unknown" : <Time at={entry.used_at} />),
    },
    {
      key: "actions",
      title: "",
      cell: (entry) =>
        mayEnd(entry) ? (
          <span class={styles["actions"]}>
            <Button
              kind="quiet"
              aria-label={`log out ${entry.browser || "unknown browser"} of ${entry.token_name || entry.token}`}
              onClick={() => setAsked(entry)}
            >
              Log out
            </Button>
          </span>
        ) : null,
    },
  ];
  const close = () => setAsked(null);
  const hasOthers = sessions.data?.some(mayEnd) === true;
  return (
    <section class={page["panel"]} aria-label="sessions">
      <div class={page["head"]}>
        <h2>Browsers</h2>
        {hasOthers && <Button onClick={() => setAsked("others")}>Log out all others</Button>}
      </div>
      <p class={page["quiet"]}>
        These browsers are logged in as you.
        {!isAdmin && " Without the scope admin, this session ends only those of its own token."}
      </p>
      {sessions.data === null ? (
        sessions.error === null ? (
          <Loading rows={3} />
        ) : (
          <ErrorNotice error={sessions.error} />
        )
      ) : (
        <DataTable
          label="your sessions"
          columns={columns}
          rows={sessions.data}
          rowKey={(entry) => entry.id}
        />
      )}
      {asked === "others" && (
        <ActionDialog
          title="Log out all other browsers?"
          confirm="Log out"
          kind="danger"
          onClose={close}
          onConfirm={async () => {
            await data(api.DELETE("/api/v1/sessions"));
            sessions.reload();
          }}
        >
          <p>
            They need a new link of <code>hop ui</code>, or a token. Tokens and runs stay as they are.
          </p>
        </ActionDialog>
      )}
      {asked !== null && asked !== "others" && (
        <ActionDialog
          title={`Log out ${asked.browser || "unknown browser"}?`}
          confirm="Log out"
          kind="danger"
          onClose={close}
          onConfirm={async () => {
            await data(api.DELETE("/api/v1/sessions/{session}", { params: { path: { session: asked.id } } }));
            sessions.reload();
          }}
        >
          <p>
            That browser needs a new link of <code>hop ui</code>, or a token. If another person has the token{" "}
            <Name text={asked.token_name || asked.token} />, revoke it, too.
          </p>
        </ActionDialog>
      )}
    </section>
  );
}
