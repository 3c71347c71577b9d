-- Under which span a verification was created, where the service is traced: a W3C traceparent. No foreign key: it is
-- written beside the creation, and the verification need not wait for it.
CREATE TABLE creation_trace (
  verification_id uuid NOT NULL,
  traceparent text NOT NULL CHECK (traceparent ~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$'),
  created_at timestamptz(3) NOT NULL DEFAULT date_trunc('milliseconds', now()),
  CONSTRAINT creation_trace_pkey PRIMARY KEY (verification_id)
);

CREATE INDEX creation_trace_created_at_idx ON creation_trace (created_at);
