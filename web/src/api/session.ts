/** The session of this browser: its user, and the forms that log in and out. */
import { signal } from "@preact/signals";
import { api, ApiError, configureClient, data, type Schemas } from "./client";

export type Session = Schemas["SessionOut"];

/** undefined: not asked yet; null: no user is logged in. */
export const session = signal<Session | null | undefined>(undefined);

function begin(found: Session | null): void {
  configureClient({ csrf: found?.csrf ?? "", onSignedOut: () => begin(null) });
  session.value = found;
}

/** Asks the server for the session. Throws ApiError where it does not answer. */
export async function loadSession(): Promise<void> {
  try {
    begin(await data(api.GET("/api/v1/session")));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      begin(null);
    } else {
      throw error;
    }
  }
}

/** Logs in by the secret of a one-time link, or by a token. Throws ApiError. */
export async function logIn(proof: { link: string } | { token: string }): Promise<void> {
  await data(api.POST("/api/v1/session", { body: { link: null, token: null, ...proof } }));
  await loadSession();
}

export async function logOut(): Promise<void> {
  await data(api.DELETE("/api/v1/session"));
  begin(null);
}
