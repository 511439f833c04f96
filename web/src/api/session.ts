/** The session of this browser: its user, and the forms that log in and out. */
import { signal } from "@preact/signals";
import { api, ApiError, configureClient, data, type Schemas } from "./client";

export type Session = Schemas["SessionOut"];

/** undefined: not asked yet; null: no user is logged in. */
export const session = signal<Session | null | undefined>(undefined);

/** Whether the session has ended by itself. `session` still has its user, and the pages what was typed: they
 *  continue once the user has logged in again. */
export const isSignedOut = signal(false);

function begin(found: Session | null): void {
  const isEnded = found === null && Boolean(session.value);
  configureClient({
    csrf: found?.csrf ?? "",
    isSignedOut: isEnded,
    onSignedOut: () => begin(null),
    renew: async () => {
      const user = session.value?.user;
      await loadSession();
      return !isSignedOut.value && session.value?.user === user;
    },
  });
  if (!isEnded) {
    if (session.value && session.value.user !== found?.user) {
      forgetTyped();
    }
    session.value = found;
  }
  isSignedOut.value = isEnded;
}

/** Removes what another user has typed in this tab. */
function forgetTyped(): void {
  try {
    sessionStorage.clear();
  } catch {
    // turned off
  }
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
  try {
    await data(api.DELETE("/api/v1/session"));
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) {
      throw error;
    }
  }
  end();
}

/** Ends the session at the user's wish: the pages go, with what was typed. */
function end(): void {
  forgetTyped();
  session.value = null;
  begin(null);
}
