import { useState } from "preact/hooks";
import { serverNow } from "@/api/answers";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { whyNoAdmin } from "@/api/rights";
import { allPages } from "@/api/runs";
import { ActionDialog } from "@/parts/action_dialog";
import { Time } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { DataTable, type DataColumn } from "@/parts/data_table";
import { Name } from "@/parts/name";
import { ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { SecretDialog } from "./secret_dialog";
import styles from "./settings.module.css";
import { expiry, LIFETIMES, SCOPES, widest, type Scope } from "./token_text";

type Token = Schemas["TokenOut"];
type Asked = { kind: "create" } | { kind: "rotate" | "revoke"; token: Token };

/** The user's tokens: list, make, replace and revoke. */
export function TokensPanel() {
  const [asked, setAsked] = useState<Asked | null>(null);
  const [made, setMade] = useState<Schemas["NewTokenOut"] | null>(null);
  const tokens = usePolled(
    "tokens",
    async () => {
      const pages = await allPages<Schemas["TokensOut"]>((after) =>
        data(api.GET("/api/v1/tokens", { params: { query: after === null ? {} : { after } } })),
      );
      return pages.flatMap((each) => each.tokens);
    },
    () => null,
  );
  const refusal = whyNoAdmin();
  const columns: DataColumn<Token>[] = [
    {
      key: "name",
      title: "Name",
      value: (token) => token.name,
      cell: (token) => (
        <>
          <Name text={token.name} /> {token.current && <span class={page["quiet"]}>this session</span>}
        </>
      ),
    },
    { key: "scope", title: "Scope", value: (token) => widest(token.scopes) },
    {
      key: "created",
      title: "Created",
      value: (token) => token.created_at,
      cell: (token) => <Time at={token.created_at} />,
    },
    {
      key: "used",
      title: "Last used",
      value: (token) => token.used_at,
      cell: (token) => (token.used_at === null ? "never" : <Time at={token.used_at} />),
    },
    {
      key: "expires",
      title: "Expires",
      value: (token) => token.expires_at,
      cell: (token) =>
        token.expired ? "expired" : token.expires_at === null ? "never" : <Time at={token.expires_at} />,
    },
  ];
  if (refusal === "") {
    columns.push({
      key: "actions",
      title: "",
      cell: (token) => (
        <span class={styles["actions"]}>
          <Button
            kind="quiet"
            aria-label={`rotate ${token.name}`}
            onClick={() => setAsked({ kind: "rotate", token })}
          >
            Rotate
          </Button>
          <Button
            kind="quiet"
            aria-label={`revoke ${token.name}`}
            onClick={() => setAsked({ kind: "revoke", token })}
          >
            Revoke
          </Button>
        </span>
      ),
    });
  }
  const close = () => setAsked(null);
  return (
    <section class={page["panel"]} aria-label="tokens">
      <div class={page["head"]}>
        <h2>Tokens</h2>
        {refusal === "" && <Button onClick={() => setAsked({ kind: "create" })}>New token</Button>}
      </div>
      <p class={page["quiet"]}>Programs and terminals prove with a token that they act for you. {refusal}</p>
      {tokens.data === null ? (
        tokens.error === null ? (
          <Loading rows={3} />
        ) : (
          <ErrorNotice error={tokens.error} />
        )
      ) : (
        <DataTable label="your tokens" columns={columns} rows={tokens.data} rowKey={(token) => token.id} />
      )}
      {asked?.kind === "create" && (
        <CreateDialog
          onClose={close}
          onMade={(token) => {
            setMade(token);
            tokens.reload();
          }}
        />
      )}
      {asked?.kind === "rotate" && (
        <ActionDialog
          title={`Rotate ${asked.token.name}?`}
          confirm="Rotate"
          onClose={close}
          onConfirm={async () => {
            setMade(
              await data(
                api.POST("/api/v1/tokens/{token}/rotate", {
                  params: { path: { token: asked.token.id } },
                  body: { expires_at: null },
                }),
              ),
            );
            if (!asked.token.current) {
              tokens.reload();
            }
          }}
        >
          <p>
            A new token with the same name, scope and lifetime replaces it. The old one is invalid at once.
          </p>
          {asked.token.current && <OwnSession />}
        </ActionDialog>
      )}
      {asked?.kind === "revoke" && (
        <ActionDialog
          title={`Revoke ${asked.token.name}?`}
          confirm="Revoke"
          kind="danger"
          onClose={close}
          onConfirm={async () => {
            await data(api.DELETE("/api/v1/tokens/{token}", { params: { path: { token: asked.token.id } } }));
            tokens.reload();
          }}
        >
          <p>What uses the token is refused at once. This cannot be undone. Runs that it started continue.</p>
          {asked.token.current && <OwnSession />}
        </ActionDialog>
      )}
      {made !== null && (
        <SecretDialog
          title={`The token ${made.token.name}`}
          secret={made.secret}
          onClose={() => {
            setMade(null);
            tokens.reload();
          }}
        />
      )}
    </section>
  );
}

function OwnSession() {
  return (
    <p>
      <b>This browser is logged in with this token.</b> Its session ends: log in again with{" "}
      <code>hop ui</code> or with a token.
    </p>
  );
}

function CreateDialog({
  onClose,
  onMade,
}: {
  onClose: () => void;
  onMade: (token: Schemas["NewTokenOut"]) => void;
}) {
  const [name, setName] = useState("");
  const [scope, setScope] = useState<Scope>("submit");
  const [lifetime, setLifetime] = useState(1);
  return (
    <ActionDialog
      title="New token"
      confirm="Create"
      onClose={onClose}
      onConfirm={async () => {
        const days = LIFETIMES[lifetime]?.days ?? null;
        onMade(
          await data(
            api.POST("/api/v1/tokens", {
              body: { name, scopes: [scope], expires_at: expiry(days, serverNow()), user: null },
            }),
          ),
        );
      }}
    >
      <label>
        Name: where it is used
        <input
          required
          maxLength={128}
          placeholder="laptop"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
      </label>
      <label>
        Scope
        <select
          value={scope}
          onChange={(event) => setScope(event.currentTarget.value as Scope)}
          aria-describedby="scope-text"
        >
          {(Object.keys(SCOPES) as Scope[]).map((each) => (
            <option key={each} value={each}>
              {each}
            </option>
          ))}
        </select>
        <small id="scope-text">{SCOPES[scope]}</small>
      </label>
      <label>
        Valid for
        <select value={lifetime} onChange={(event) => setLifetime(Number(event.currentTarget.value))}>
          {LIFETIMES.map(({ title }, index) => (
            <option key={title} value={index}>
              {title}
            </option>
          ))}
        </select>
      </label>
    </ActionDialog>
  );
}
