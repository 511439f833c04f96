/**
 * An open report: what was typed, and what the server has. Nothing that was typed is lost: it is in the storage of
 * the browser until the server has it, and work of another editor is never replaced without a choice.
 */
import { ApiError, isTemporary } from "@/api/client";
import type { TextStorage } from "@/api/user_storage";
import { contentOf, isSame, type Content, type Report } from "./blocks";

export type SaveStatus =
  | "saved"
  | "unsaved"
  | "saving"
  | "away" // the server does not answer; saved again once it does
  | "refused" // by the server: `error` says why
  | "conflict" // another editor has changed the report: `theirs`
  | "gone"; // the report was removed

export interface SessionState {
  report: Report; // as the server has it, of the revision that `content` began from
  content: Content;
  status: SaveStatus;
  error: unknown;
  theirs: Report | null;
}

export interface ReportApi {
  get: (id: string) => Promise<Report>;
  put: (id: string, body: Content & { revision: number }) => Promise<Report>;
}

interface Draft {
  base: number;
  content: Content;
}

const SAVE_MS = 1500; // after the last change
const RETRY_MS = 2000;
const draftKey = (id: string): string => `hopyard-report:${id}`;

export function readDraft(storage: TextStorage, id: string): Draft | null {
  try {
    const draft = JSON.parse(storage.getItem(draftKey(id)) ?? "null") as Draft | null;
    return draft && Number.isInteger(draft.base) && Array.isArray(draft.content.blocks) ? draft : null;
  } catch {
    return null;
  }
}

export class ReportSession {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isClosed = false;
  private current: SessionState;

  constructor(
    report: Report,
    private readonly api: ReportApi,
    private readonly storage: TextStorage,
    private readonly onChange: (state: SessionState) => void,
  ) {
    this.current = { report, content: contentOf(report), status: "saved", error: null, theirs: null };
    const draft = report.may_write ? readDraft(storage, report.id) : null;
    if (draft === null || isSame(draft.content, this.current.content)) {
      this.removeDraft();
    } else if (draft.base === report.revision) {
      this.current = { ...this.current, content: draft.content, status: "unsaved" };
      this.saveLater(0);
    } else {
      this.current = { ...this.current, content: draft.content, status: "conflict", theirs: report };
    }
  }

  get state(): SessionState {
    return this.current;
  }

  /** Takes a change of the editor, and saves it soon. */
  change(part: Partial<Content>): void {
    const content = { ...this.current.content, ...part };
    const { status, report } = this.current;
    this.writeDraft(report, content);
    const isHeld = status === "conflict" || status === "gone" || status === "saving";
    this.update({ content, status: isHeld ? status : "unsaved", error: isHeld ? this.current.error : null });
    if (!isHeld) {
      this.saveLater(SAVE_MS);
    }
  }

  /** Saves what is not saved. */
  async save(): Promise<void> {
    clearTimeout(this.timer);
    const { content, report, status } = this.current;
    if (status !== "unsaved" && status !== "away" && status !== "refused") {
      return;
    }
    this.update({ status: "saving" });
    try {
      const saved = await this.api.put(report.id, { ...content, revision: report.revision });
      const isAll = isSame(this.current.content, content);
      if (isAll) {
        this.removeDraft();
      } else {
        this.writeDraft(saved, this.current.content);
      }
      this.update({ report: saved, status: isAll ? "saved" : "unsaved", error: null });
      if (!isAll) {
        this.saveLater(SAVE_MS);
      }
    } catch (error) {
      await this.onFailure(error);
    }
  }

  /** Looks for the work of others: after an event, and when the server is back. */
  async refresh(): Promise<void> {
    if (this.current.status === "saving" || this.isClosed) {
      return; // the answer will say
    }
    const { id, revision } = this.current.report;
    try {
      const found = await this.api.get(id);
      if (this.current.report.revision !== revision) {
        await this.refresh(); // a save has ended meanwhile: the answer may be older than it
        return;
      }
      this.onFound(found);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) {
        this.update({ status: "gone" });
      } // any other failure is that of the next save
    }
  }

  /** The report was removed, by this page or another one. What was typed stays here. */
  onRemoved(): void {
    clearTimeout(this.timer);
    this.update({ status: "gone" });
  }

  /** Ends a conflict with their content; one's own is dropped. */
  takeTheirs(): void {
    const { theirs } = this.current;
    if (theirs !== null) {
      this.removeDraft();
      this.update({
        report: theirs,
        content: contentOf(theirs),
        status: "saved",
        error: null,
        theirs: null,
      });
    }
  }

  /** Ends a conflict with one's own content. Theirs stays among the earlier revisions. */
  async keepMine(): Promise<void> {
    const { theirs } = this.current;
    if (theirs !== null) {
      this.update({ report: theirs, status: "unsaved", theirs: null });
      await this.save();
    }
  }

  /** Forgets what is not saved: it is in another report now. */
  drop(): void {
    clearTimeout(this.timer);
    this.removeDraft();
    this.isClosed = true;
  }

  /** Saves at once what is not saved, and stops. A draft stays until it is saved. */
  close(): void {
    void this.save();
    this.isClosed = true;
  }

  private onFound(found: Report): void {
    const { report, content, status } = this.current;
    if (status === "saving" || found.revision === report.revision) {
      return;
    }
    // a server that was restored from a backup has lost what this page shows
    const isEarlier = found.revision < report.revision && found.may_write;
    if ((status === "saved" && !isEarlier) || isSame(contentOf(found), content)) {
      this.removeDraft();
      this.update({ report: found, content: contentOf(found), status: "saved", error: null, theirs: null });
    } else if (status !== "gone") {
      clearTimeout(this.timer);
      this.update({ status: "conflict", theirs: found });
    }
  }

  private async onFailure(error: unknown): Promise<void> {
    const status = error instanceof ApiError ? error.status : -1;
    if (status === 409) {
      this.update({ status: "unsaved" });
      await this.refresh();
      if (this.current.status === "unsaved") {
        this.update({ status: "refused", error });
      }
    } else if (status === 404) {
      this.update({ status: "gone" });
    } else if (isTemporary(error)) {
      this.update({ status: "away", error });
      this.saveLater(RETRY_MS);
    } else {
      this.update({ status: "refused", error });
    }
  }

  private saveLater(ms: number): void {
    clearTimeout(this.timer);
    if (!this.isClosed) {
      this.timer = setTimeout(() => void this.save(), ms);
    }
  }

  private writeDraft(report: Report, content: Content): void {
    try {
      const draft: Draft = { base: report.revision, content };
      this.storage.setItem(draftKey(report.id), JSON.stringify(draft));
    } catch {
      // no storage, or a full one: the server still gets the change
    }
  }

  private removeDraft(): void {
    try {
      this.storage.removeItem(draftKey(this.current.report.id));
    } catch {
      // no storage
    }
  }

  private update(part: Partial<SessionState>): void {
    this.current = { ...this.current, ...part };
    if (!this.isClosed) {
      this.onChange(this.current);
    }
  }
}
