import { lazy, Suspense } from "preact/compat";
import { useEffect, useState } from "preact/hooks";
import { Redirect, Route, Switch } from "wouter-preact";
import { CSPProvider } from "@base-ui/react/csp-provider";
import { ApiError } from "@/api/client";
import { loadSession, session } from "@/api/session";
import { LoginPage } from "@/pages/login/login_page";
import { Empty, ErrorNotice, Loading } from "@/parts/notices";
import styles from "./app.module.css";
import { CommandPalette } from "./shell/command_palette";
import { Keyboard } from "./shell/keyboard";
import { Navigation } from "./shell/navigation";
import { OTHER_PAGES, PAGES } from "./shell/pages";

const RETRY_MS = 1000;
const RunPage = lazy(() => import("@/pages/run/run_page").then((page) => page.RunPage));

/** The application: the login, or the pages beside their navigation. Waits for a server that is away. */
export function App() {
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    let timer = 0;
    const load = (): void => {
      loadSession()
        .then(() => setError(null))
        .catch((failure: unknown) => {
          setError(failure);
          if (failure instanceof ApiError && failure.status === 0) {
            timer = window.setTimeout(load, RETRY_MS);
          }
        });
    };
    load();
    return () => window.clearTimeout(timer);
  }, []);

  if (session.value === undefined) {
    return error === null ? <Loading /> : <ErrorNotice error={error} />;
  }
  if (session.value === null) {
    return <LoginPage />;
  }
  return (
    // without its style elements, which the content security policy of the page refuses
    <CSPProvider disableStyleElements>
      <div class={styles["frame"]}>
        <Navigation />
        <Keyboard />
        <CommandPalette />
        <main class={styles["page"]}>
          <Suspense fallback={<Loading />}>
            <Switch>
              {[...PAGES, ...OTHER_PAGES].map((page) => (
                <Route key={page.path} path={page.path}>
                  <page.component />
                </Route>
              ))}
              <Route path="/runs/*">
                <RunPage />
              </Route>
              <Route path="/">
                <Redirect to="/runs" replace />
              </Route>
              <Route path="/login">
                <Redirect to="/runs" replace />
              </Route>
              <Route>
                <Empty title="There is no such page" />
              </Route>
            </Switch>
          </Suspense>
        </main>
      </div>
    </CSPProvider>
  );
}
