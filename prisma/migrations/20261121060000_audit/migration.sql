-- What administrators did. Written in the transaction that does it; never changed.
CREATE TABLE "audit_entry" (
  "id" UUID NOT NULL,
  "occurred_at" TIMESTAMPTZ(3) NOT NULL DEFAULT date_trunc('milliseconds', now()),
  "actor" TEXT NOT NULL,
  "address" TEXT NOT NULL,
  "request_id" TEXT NOT NULL,
  "action" TEXT NOT NULL,
  "subject" TEXT NOT NULL,
  "project_id" UUID,
  "details" JSONB NOT NULL,
  CONSTRAINT "audit_entry_pkey" PRIMARY KEY ("id"),
  CONSTRAINT "audit_entry_project_id_fkey" FOREIGN KEY ("project_id") REFERENCES "project" ("id")
    ON DELETE RESTRICT ON UPDATE RESTRICT
);
CREATE INDEX "audit_entry_project_id_id_idx" ON "audit_entry" ("project_id", "id");
