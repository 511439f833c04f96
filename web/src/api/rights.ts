/** What the user of this browser may do, as the server knows the user. The server checks again. */
import { session, type Session } from "./session";

interface Owned {
  name: string; // user/project/number
  spec: { queue?: string | null };
}

const READ_ONLY = "This session may only read: its token has the scope `read`. Log in with another token.";

/** Returns why the user cannot start runs, star or push; "" for a user with that right. */
export function whyNoSubmit(user: Session | null | undefined = session.value): string {
  return user?.scopes.includes("submit") ? "" : READ_ONLY;
}

/** Returns why the user cannot fork a run; "" for one that can be forked. */
export function whyNoFork(
  run: { offline: boolean; spec: { code?: string | null } },
  user: Session | null | undefined = session.value,
): string {
  const refusal = whyNoSubmit(user);
  return refusal === "" && run.offline && !run.spec.code
    ? "The run was recorded offline, without its code: it cannot be forked."
    : refusal;
}

/** Returns why the user cannot stop, change or delete a run; "" for a user with that right. */
export function whyNoChange(run: Owned, user: Session | null | undefined = session.value): string {
  const refusal = whyNoSubmit(user);
  const owner = run.name.split("/")[0] ?? "";
  if (refusal !== "" || !user) {
    return refusal;
  }
  return user.owner || user.user === owner || user.admin_queues.includes(run.spec.queue ?? "")
    ? ""
    : `Only ${owner}, administrators of its queue and the owner of the server change this run. Fork it to change a copy.`;
}

/** Returns why the user cannot open a console of a run, which executes code as the run's user; "" for a user with that
 *  right. */
export function whyNoConsole(run: Owned, user: Session | null | undefined = session.value): string {
  const refusal = whyNoSubmit(user);
  const owner = run.name.split("/")[0] ?? "";
  return refusal !== "" || !user || user.owner || user.user === owner
    ? refusal
    : `Only ${owner} and the owner of the server open a console of this run: it executes code as ${owner}.`;
}

/** Returns why the user cannot delete versions of a dataset; "" if the user pushed all of them, or owns the
 *  server. */
export function whyNoDelete(
  versions: readonly { number: number; created_by: string }[],
  user: Session | null | undefined = session.value,
): string {
  const refusal = whyNoSubmit(user);
  const other = versions.find((version) => version.created_by !== user?.user);
  return refusal !== "" || !user || user.owner || other === undefined
    ? refusal
    : `${other.created_by} pushed version ${other.number}: only ${other.created_by} and the owner of the server delete it.`;
}

/** Returns why the user cannot change what the leaderboard of a dataset ranks by; "" for a user with that
 *  right. `versions`: newest first. */
export function whyNoMetric(
  versions: readonly { created_by: string }[],
  user: Session | null | undefined = session.value,
): string {
  const refusal = whyNoSubmit(user);
  const first = versions.at(-1)?.created_by;
  return refusal !== "" || !user || user.owner || first === undefined || first === user.user
    ? refusal
    : `Only ${first} and the owner of the server change the metric for all users.`;
}

/** Returns why the user cannot describe a dataset; "" for the users that pushed a version of it, and for the
 *  owner of the server. */
export function whyNoDescribe(
  versions: readonly { created_by: string }[],
  user: Session | null | undefined = session.value,
): string {
  const refusal = whyNoSubmit(user);
  const isOther = versions.length > 0 && versions.every((version) => version.created_by !== user?.user);
  return refusal !== "" || !user || user.owner || !isOther
    ? refusal
    : "Only the users that pushed a version, and the owner of the server, describe the dataset.";
}

/** Returns why the user cannot take nodes in and out of service; "" for a user with that right. */
export function whyNoNodes(user: Session | null | undefined = session.value): string {
  return user?.owner ? whyNoScope(user) : "Only the owner of the server changes nodes.";
}

/** Returns why the user cannot reserve for any queue; "" for a user with that right. */
export function whyNoReserve(user: Session | null | undefined = session.value): string {
  return user && (user.owner || user.admin_queues.length > 0)
    ? whyNoScope(user)
    : "Only the owner of the server, and administrators for their queues, reserve.";
}

function whyNoScope(user: Session): string {
  return user.scopes.includes("admin")
    ? ""
    : "The token of this session does not have the scope `admin`. Log in with another token.";
}

/** Returns why the user cannot manage tokens, users, queues and nodes; "" for a user with that right. */
export function whyNoAdmin(user: Session | null | undefined = session.value): string {
  return user?.scopes.includes("admin")
    ? ""
    : "This session cannot manage tokens: its token does not have the scope `admin`. Log in with another token, or use `hop token` in a terminal.";
}
