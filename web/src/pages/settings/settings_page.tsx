import { useState } from "preact/hooks";
import { allowNotifications, notificationState, type Permission } from "@/api/inbox";
import { logOut, session } from "@/api/session";
import { Time } from "@/pages/run/fields";
import { Button } from "@/parts/button";
import { Name } from "@/parts/name";
import page from "@/parts/page.module.css";
import { theme, type Theme } from "@/shell/theme";
import { SessionsPanel } from "./sessions_panel";
import styles from "./settings.module.css";
import { roleText, SCOPES, widest } from "./token_text";
import { TokensPanel } from "./tokens_panel";
import { UsersPanel } from "./users_panel";

const THEMES: Readonly<Record<Theme, string>> = { system: "As the system", light: "Light", dark: "Dark" };
const PERMISSIONS: Readonly<Record<Permission, string>> = {
  on: "This browser shows a notification of alerts and ends of your runs, while a tab of this page is open in the background.",
  off: "Let this browser show a notification of alerts and ends of your runs, while a tab of this page is open in the background.",
  denied: "This browser refuses notifications of this page. Allow them in the settings of the browser.",
  unsupported: "This browser shows notifications only of pages on this machine, or with https.",
};

/** The user's own account: role, session, theme, notifications, tokens; for the owner of the server, all users. */
export function SettingsPage() {
  const user = session.value;
  if (!user) {
    return null;
  }
  const scope = widest(user.scopes);
  return (
    <div class={page["page"]}>
      <div class={page["head"]}>
        <h1>Settings</h1>
      </div>
      <div class={page["panels"]}>
        <section class={page["panel"]} aria-label="account">
          <div class={page["head"]}>
            <h2>
              <Name text={user.user} />
            </h2>
            <Button onClick={() => void logOut()}>Log out</Button>
          </div>
          {roleText(user).map((sentence) => (
            <p key={sentence}>{sentence}</p>
          ))}
          <p>
            This session has the scope <b>{scope}</b>: {SCOPES[scope]}.
          </p>
          <p class={page["quiet"]}>
            Server {user.server}, version {user.version}
            {user.expires_at !== null && (
              <>
                . The session ends at <Time at={user.expires_at} />
              </>
            )}
          </p>
        </section>
        <section class={page["panel"]} aria-label="this browser">
          <h2>This browser</h2>
          <fieldset class={styles["choices"]}>
            <legend>Theme</legend>
            {(Object.keys(THEMES) as Theme[]).map((each) => (
              <label key={each}>
                <input
                  type="radio"
                  name="theme"
                  checked={theme.value === each}
                  onChange={() => (theme.value = each)}
                />
                {THEMES[each]}
              </label>
            ))}
          </fieldset>
          <NotificationChoice />
        </section>
      </div>
      <SessionsPanel />
      <TokensPanel />
      {user.owner && <UsersPanel />}
    </div>
  );
}

function NotificationChoice() {
  const [state, setState] = useState(notificationState);
  return (
    <fieldset class={styles["choices"]}>
      <legend>Notifications</legend>
      <label>
        <input
          type="checkbox"
          checked={state === "on"}
          disabled={state === "denied" || state === "unsupported"}
          onChange={(event) => {
            void allowNotifications(event.currentTarget.checked).then(() => setState(notificationState()));
          }}
        />
        {PERMISSIONS[state]}
      </label>
    </fieldset>
  );
}
