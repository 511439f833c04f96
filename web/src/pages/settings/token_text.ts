/** The words of the settings: roles, scopes, and how long a token is valid. */
import type { Schemas } from "@/api/client";
import type { Session } from "@/api/session";

export type Scope = Schemas["Scope"];

export const SCOPES: Readonly<Record<Scope, string>> = {
  read: "view everything, and download",
  submit: "also start, change and delete runs, and push datasets",
  admin: "also manage tokens, secrets, users, queues, nodes and the server, as far as the user may",
};

export const LIFETIMES = [
  { title: "7 days", days: 7 },
  { title: "30 days", days: 30 },
  { title: "90 days", days: 90 },
  { title: "1 year", days: 365 },
  { title: "until it is revoked", days: null },
] as const;

/** Returns the widest scope of a token, which includes the others. */
export function widest(scopes: readonly Scope[]): Scope {
  return (["admin", "submit"] as const).find((scope) => scopes.includes(scope)) ?? "read";
}

/** Returns the time after a number of days, as the API takes it; null for never. */
export function expiry(days: number | null, now: number): string | null {
  return days === null ? null : new Date(now + days * 86_400_000).toISOString();
}

/** Returns what the user is on this server, as sentences. */
export function roleText(user: Session): string[] {
  const sentences = user.owner
    ? ["Owner of this server: manages users and their tokens, and may change every run."]
    : ["User: starts runs, and changes the own ones."];
  if (user.admin_queues.length > 0 && !user.owner) {
    sentences.push(
      `Administrator of ${user.admin_queues.length === 1 ? "the queue" : "the queues"} ${user.admin_queues.join(", ")}: may change the runs there.`,
    );
  }
  return sentences;
}
