import { useState } from "preact/hooks";
import { api, data, type Schemas } from "@/api/client";
import { usePolled } from "@/api/polling";
import { whyNoAdmin } from "@/api/rights";
import { allPages } from "@/api/runs";
import dialog from "@/parts/action_dialog.module.css";
import { ActionDialog } from "@/parts/action_dialog";
import { Time } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { DataTable, type DataColumn } from "@/parts/data_table";
import { ErrorNotice, Loading } from "@/parts/notices";
import page from "@/parts/page.module.css";
import { SecretDialog } from "./secret_dialog";
import styles from "./settings.module.css";

type User = Schemas["UserOut"];
type Asked = { kind: "add" } | { kind: "remove"; user: User };

/** All users of the server, for its owner: list, add and remove. */
export function UsersPanel() {
  const [asked, setAsked] = useState<Asked | null>(null);
  const [made, setMade] = useState<Schemas["NewUserOut"] | null>(null);
  const users = usePolled(
    "users",
    async () => {
      const pages = await allPages<Schemas["UsersOut"]>((after) =>
        data(api.GET("/api/v1/users", { params: { query: after === null ? {} : { after } } })),
      );
      return pages.flatMap((each) => each.users);
    },
    () => null,
  );
  const mayChange = whyNoAdmin() === "";
  const columns: DataColumn<User>[] = [
    { key: "name", title: "Name", value: (user) => user.name },
    { key: "role", title: "Role", value: (user) => (user.owner ? "owner of the server" : "user") },
    { key: "tokens", title: "Tokens", value: (user) => user.tokens, isNumber: true },
    {
      key: "created",
      title: "Since",
      value: (user) => user.created_at,
      cell: (user) => <Time at={user.created_at} />,
    },
    {
      key: "actions",
      title: "",
      cell: (user) =>
        mayChange &&
        !user.owner && (
          <span class={styles["actions"]}>
            <Button
              kind="quiet"
              aria-label={`remove ${user.name}`}
              onClick={() => setAsked({ kind: "remove", user })}
            >
              Remove
            </Button>
          </span>
        ),
    },
  ];
  const close = () => setAsked(null);
  return (
    <section class={page["panel"]} aria-label="users">
      <div class={page["head"]}>
        <h2>Users</h2>
        {mayChange && <Button onClick={() => setAsked({ kind: "add" })}>Add a user</Button>}
      </div>
      <p class={page["quiet"]}>
        Administrators of queues are named in the tree of queues: <code>hop queue apply</code>.
      </p>
      {users.data === null ? (
        users.error === null ? (
          <Loading rows={3} />
        ) : (
          <ErrorNotice error={users.error} />
        )
      ) : (
        <DataTable label="users" columns={columns} rows={users.data} rowKey={(user) => user.name} />
      )}
      {asked?.kind === "add" && (
        <AddDialog
          onClose={close}
          onMade={(user) => {
            setMade(user);
            users.reload();
          }}
        />
      )}
      {asked?.kind === "remove" && (
        <RemoveDialog user={asked.user} onClose={close} onRemoved={users.reload} />
      )}
      {made !== null && (
        <SecretDialog title={`The token of ${made.name}`} secret={made.token} onClose={() => setMade(null)} />
      )}
    </section>
  );
}

function AddDialog({
  onClose,
  onMade,
}: {
  onClose: () => void;
  onMade: (user: Schemas["NewUserOut"]) => void;
}) {
  const [name, setName] = useState("");
  const [isReturning, setReturning] = useState(false);
  return (
    <ActionDialog
      title="Add a user"
      confirm="Add"
      onClose={onClose}
      onConfirm={async () => {
        onMade(await data(api.POST("/api/v1/users", { body: { name, returning: isReturning } })));
      }}
    >
      <p>The user gets a token, which is shown once. Pass it on safely.</p>
      <label>
        Name
        <input
          required
          maxLength={128}
          placeholder="bob"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
        />
      </label>
      <label class={dialog["check"]}>
        <input type="checkbox" checked={isReturning} onChange={() => setReturning(!isReturning)} />
        The removed user of this name returns, with the runs and datasets of the name
      </label>
    </ActionDialog>
  );
}

function RemoveDialog({
  user,
  onClose,
  onRemoved,
}: {
  user: User;
  onClose: () => void;
  onRemoved: () => void;
}) {
  const [stops, setStops] = useState(false);
  return (
    <ActionDialog
      title={`Remove ${user.name}?`}
      confirm="Remove the user"
      kind="danger"
      onClose={onClose}
      onConfirm={async () => {
        await data(
          api.DELETE("/api/v1/users/{user}", {
            params: { path: { user: user.name }, query: { stop_runs: stops ? 1 : 0 } },
          }),
        );
        onRemoved();
      }}
    >
      <p>
        All tokens of {user.name} become invalid, and the secrets and views are deleted. Runs and datasets
        remain, and no other user can get the name.
      </p>
      <label class={dialog["check"]}>
        <input type="checkbox" checked={stops} onChange={() => setStops(!stops)} />
        Also stop the live runs
      </label>
    </ActionDialog>
  );
}
