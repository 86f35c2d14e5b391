-- What people do to a review row by plain UPDATE, made whole: names that can't be forged, the status, the audit trail;
-- and what can't be decided any more is refused at once. Like their twins for SQLite, these act on columns that an
-- UPDATE names, whether or not it changes them: deciding the same again after a refusal is a new decision.
-- They run with their owner's rights, because reviewers may not write to the tables that they write to.
create or replace function redrive.escalated_messages_refuse() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
begin
    if old.applied_at is not null or old.status = 'applied' then
        raise exception 'this escalation was applied already; a message that fails again gets a new row';
    end if;
    if new.status <> old.status and new.status in ('applied', 'refused', 'reopened') then
        return new;  -- the machine's word, not a person's
    end if;
    if old.status = 'decided' and exists (
        select from messages
        where messages.message_id = old.message_id and (
            messages.state not in ('escalated', 'restoring', 'restore_unknown')
            -- it was released before: if it can't be put back, it is sent as that was decided
            or (messages.state = 'restoring' and coalesce(messages.plan, '') = 'release')
        )
    ) then
        raise exception 'too late: this decision was taken up already';
    end if;
    return new;
end
$$
--;
create or replace function redrive.escalated_messages_decide() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
begin
    if new.status <> old.status and new.status in ('applied', 'refused', 'reopened') then
        return new;
    end if;
    if new.decision is not null then
        if new.decision not in ('redeliver', 'discard', 'edit', 'not_there') then
            raise exception 'no such decision, %: write redeliver, discard, edit or not_there, or null to take it back',
                new.decision;
        end if;
        new.status := 'decided';
        new.refusal := null;
        if new.decided_at is null or new.decided_at is not distinct from old.decided_at then
            new.decided_at := clock_timestamp();
        end if;
        -- a second person approved what was decided then, not what is decided now
        if new.approved_by is not distinct from old.approved_by then
            new.approved_by := null;
        end if;
        insert into audit_events (at, route, actor, action, message_id, reason)
        values (
            clock_timestamp(), new.route, coalesce(new.decided_by, '?'), 'decide_' || new.decision, new.message_id,
            new.note
        );
    elsif old.status = 'decided' and new.status in ('decided', 'open') then
        new.status := 'open';
        new.decided_at := null;
        new.approved_by := null;
        insert into audit_events (at, route, actor, action, message_id, reason)
        values (
            clock_timestamp(), new.route, coalesce(new.decided_by, old.decided_by, '?'), 'withdraw_' || old.decision,
            new.message_id, new.note
        );
    end if;
    return new;
end
$$
--;
-- Another note or another name, and no decision: told, and what was approved was not this. Whoever puts a name to a
-- decision that stands takes it over.
create or replace function redrive.escalated_messages_reword() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
declare
    takes_over constant boolean := new.status = 'decided' and new.decided_by is distinct from old.decided_by;
begin
    -- No trigger knows which other columns the UPDATE names, so what was told shows whether it was a decision.
    if exists (
        select from audit_events
        where event_id = (select max(event_id) from audit_events where message_id = new.message_id)
            and actor = new.decided_by and action = 'decide_' || new.decision and reason is not distinct from new.note
    ) then
        return new;
    end if;
    if new.status = 'decided' then
        new.decided_at := clock_timestamp();
        if new.approved_by is not distinct from old.approved_by then
            new.approved_by := null;
        end if;
    end if;
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        clock_timestamp(), new.route, coalesce(new.decided_by, '?'),
        case when takes_over then 'decide_' || new.decision else 'note' end, new.message_id, new.note
    );
    return new;
end
$$
--;
-- Who decides is who is logged in, for members of redrive_reviewer; the owner (Redrive itself, which passes on the
-- name of a person whom it has authenticated) and superusers say whom they act for. The trigger's argument says which
-- name it is about. A decision is signed whenever anything of it is named, also where nothing changes: whoever decides
-- again what somebody else had decided is the one who decides.
create or replace function redrive.escalated_messages_sign() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
begin
    if not (
        session_user <> current_user
        and to_regrole('redrive_reviewer') is not null
        and pg_has_role(session_user, to_regrole('redrive_reviewer'), 'member')
        and not (select rolsuper from pg_catalog.pg_roles where rolname = session_user)
    ) then
        return new;
    end if;
    if tg_argv[0] = 'decided_by' then
        new.decided_by := session_user;
    elsif new.approved_by is not null and new.approved_by is distinct from old.approved_by then
        new.approved_by := session_user;
    end if;
    return new;
end
$$
--;
create or replace function redrive.escalated_messages_second_person() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    raise exception 'a second person has to approve, not the one who decided';
end
$$
--;
create or replace function redrive.escalated_messages_approve() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
begin
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        clock_timestamp(), new.route,
        coalesce(new.approved_by, session_user),  -- nobody gives a name with an approval that is taken back
        case when new.approved_by is null then 'unapprove_' else 'approve_' end || coalesce(new.decision, 'nothing'),
        new.message_id, new.note
    );
    return null;
end
$$
--;
-- What looks like a decision and is none is refused at once, or whoever wrote it would take it for done. The machine
-- writes headers too, of a message that came back, but never with a decision.
create or replace function redrive.escalated_messages_misplaced() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    raise exception '%', tg_argv[0];
end
$$
--;
create or replace trigger escalated_messages_b_payload
before update of payload, payload_bytes on redrive.escalated_messages
for each row when (
    (new.payload is not null and new.payload is distinct from old.payload)
    or (new.payload_bytes is not null and new.payload_bytes is distinct from old.payload_bytes)
)
execute function redrive.escalated_messages_misplaced(
    'payload shows what the message was, and is not what is sent: write decision = ''edit'' and corrected_body'
)
--;
create or replace trigger escalated_messages_b_headers
before update of headers on redrive.escalated_messages
for each row when (
    new.headers is distinct from old.headers
    and new.decision is not null and new.decision is distinct from old.decision
)
execute function redrive.escalated_messages_misplaced(
    'headers show what the message had, and are not what is sent: write decision = ''edit'' and corrected_headers'
)
--;
create or replace trigger escalated_messages_b_correction
before update of corrected_body, corrected_headers on redrive.escalated_messages
for each row when (
    new.decision is distinct from 'edit'
    and (
        (new.corrected_body is not null and new.corrected_body is distinct from old.corrected_body)
        or (new.corrected_headers is not null and new.corrected_headers is distinct from old.corrected_headers)
    )
)
execute function redrive.escalated_messages_misplaced(
    'only decision = ''edit'' sends a correction: write it in the same statement'
)
--;
create or replace trigger escalated_messages_b_status
before update of status on redrive.escalated_messages
for each row when (new.status = 'decided' and new.decision is null and old.status <> 'decided')
execute function redrive.escalated_messages_misplaced(
    'status follows from the decision: write decision and decided_by'
)
--;
-- Before triggers run in the order of their names: first the refusals and signatures, then the decision.
create or replace trigger escalated_messages_a_refuse
before update of decision, corrected_body, corrected_headers, note, decided_by, approved_by on redrive.escalated_messages
for each row execute function redrive.escalated_messages_refuse()
--;
create or replace trigger escalated_messages_a_sign
before update of decision, corrected_body, corrected_headers, note, decided_by on redrive.escalated_messages
for each row execute function redrive.escalated_messages_sign('decided_by')
--;
create or replace trigger escalated_messages_a_sign_approval
before update of approved_by on redrive.escalated_messages
for each row execute function redrive.escalated_messages_sign('approved_by')
--;
create or replace trigger escalated_messages_b_decide
before update of decision, corrected_body, corrected_headers on redrive.escalated_messages
for each row execute function redrive.escalated_messages_decide()
--;
-- A decision that was just made has set another status, or told the note and the name itself.
create or replace trigger escalated_messages_b_reword before update of note, decided_by on redrive.escalated_messages
for each row when (
    (new.note is distinct from old.note or new.decided_by is distinct from old.decided_by)
    and new.status = old.status
    and new.decision is not distinct from old.decision
)
execute function redrive.escalated_messages_reword()
--;
-- Those that a decision or another status makes void are told with it.
create or replace trigger escalated_messages_c_approve after update of approved_by on redrive.escalated_messages
for each row when (
    new.approved_by is distinct from old.approved_by
    and (
        new.approved_by is not null
        or (new.status = old.status and new.decided_at is not distinct from old.decided_at)
    )
)
execute function redrive.escalated_messages_approve()
--;
-- After the decision has cleared what it makes void: an approval by whoever decided is refused at once.
create or replace trigger escalated_messages_b_second_person before update on redrive.escalated_messages
for each row when (
    new.approved_by is not null and new.approved_by is distinct from old.approved_by
    and lower(trim(new.approved_by)) = lower(trim(new.decided_by))
)
execute function redrive.escalated_messages_second_person()
--;
-- What people were shown of it is not what it is any more, or it was not there yet: numbers are given before others see
-- the row, so one below the last that was shown may be new. Which transaction wrote it tells, unlike a time, whether
-- somebody who looked could see that.
create or replace function redrive.escalated_messages_changed() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    new.changed := pg_current_xact_id()::text::bigint;
    return new;
end
$$
--;
create or replace trigger escalated_messages_d_changed
before insert or update of status, group_id, reason, decision, decided_by, decided_at, approved_by, note, corrected_body, corrected_headers
on redrive.escalated_messages
for each row execute function redrive.escalated_messages_changed()
--;
-- A decision that also holds for what comes later: signed like any other, kept as it was made until it runs out or is
-- revoked, and told in the audit trail.
create or replace function redrive.standing_decisions_keep() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
declare
    is_reviewer constant boolean := session_user <> current_user
        and to_regrole('redrive_reviewer') is not null
        and pg_has_role(session_user, to_regrole('redrive_reviewer'), 'member')
        and not (select rolsuper from pg_catalog.pg_roles where rolname = session_user);
    said text;
    who text;
    older bigint;
begin
    if tg_op = 'DELETE' then
        raise exception 'a standing decision is revoked, not deleted';
    end if;
    if tg_op = 'INSERT' then
        if is_reviewer then
            new.decided_by := session_user;
        end if;
        if new.approved_by is not null or new.revoked_at is not null or new.revoked_by is not null then
            raise exception 'a standing decision begins without an approval and without a revocation';
        end if;
        select merged_into into older from group_aliases where group_aliases.group_id = new.group_id;
        if older is not null then
            raise exception 'group % was merged into group %: decide about that one', new.group_id, older;
        end if;
        if new.decision not in ('redeliver', 'discard') then
            raise exception 'no such standing decision, %: write redeliver or discard', new.decision;
        end if;
        said := 'make_standing_' || new.decision;
        who := new.decided_by;
    else
        if (new.standing_id, new.route, new.group_id, new.decision, new.decided_by, new.note, new.created_at,
            new.until_at) is distinct from (old.standing_id, old.route, old.group_id, old.decision, old.decided_by,
            old.note, old.created_at, old.until_at) then
            raise exception 'a standing decision does not change: revoke it and make another';
        end if;
        if old.revoked_at is not null then
            raise exception 'this standing decision was revoked already';
        end if;
        if new.approved_by is not null and new.approved_by is distinct from old.approved_by then
            if is_reviewer then
                new.approved_by := session_user;
            end if;
            if lower(trim(new.approved_by)) in ('', lower(trim(new.decided_by))) then
                raise exception 'a second person has to approve, not the one who decided';
            end if;
            said := 'approve_standing_' || new.decision;
            who := new.approved_by;
        end if;
        if new.revoked_at is not null or new.revoked_by is not null then
            if is_reviewer then
                new.revoked_by := session_user;
            end if;
            new.revoked_at := coalesce(new.revoked_at, clock_timestamp());
            said := 'revoke_standing_' || new.decision;
            who := new.revoked_by;
        end if;
    end if;
    if said is not null then
        insert into audit_events (at, route, actor, action, selection, reason)
        values (
            clock_timestamp(), new.route, coalesce(who, '?'), said,
            json_build_object('standing_id', new.standing_id, 'group_id', new.group_id, 'until', new.until_at)::text,
            new.note
        );
    end if;
    return new;
end
$$
--;
create or replace trigger standing_decisions_keep before insert or update or delete on redrive.standing_decisions
for each row execute function redrive.standing_decisions_keep()
--;
-- Groups may have been merged since it was written. Who merges waits for this, or this for them: so it is asked when the
-- transaction ends and not before, or every load of every route waits for somebody who is at lunch over an INSERT.
create or replace function redrive.standing_decisions_name() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
declare
    older bigint;
begin
    perform from ledger_identity for share;
    select merged_into into older from group_aliases where group_aliases.group_id = new.group_id;
    if older is not null then
        raise exception 'group % was merged into group %: decide about that one', new.group_id, older;
    end if;
    return null;
end
$$
--;
do $$
begin
    if not exists (
        select from pg_catalog.pg_trigger
        where tgrelid = 'redrive.standing_decisions'::regclass and tgname = 'standing_decisions_name'
    ) then
        create constraint trigger standing_decisions_name after insert on redrive.standing_decisions
        deferrable initially deferred for each row execute function redrive.standing_decisions_name();
    end if;
end
$$
--;
-- How far people are with a failure, and what they say about it: signed like a decision, and told in the audit trail. A
-- status begins when it is written, whether or not it is another one: what was resolved again is not regressed.
create or replace function redrive.failure_issues_sign() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
begin
    if session_user <> current_user
        and to_regrole('redrive_reviewer') is not null
        and pg_has_role(session_user, to_regrole('redrive_reviewer'), 'member')
        and not (select rolsuper from pg_catalog.pg_roles where rolname = session_user) then
        new.written_by := session_user;
    end if;
    if tg_op = 'UPDATE' then
        if (new.route, new.group_id) is distinct from (old.route, old.group_id) then
            raise exception 'a word about a failure stays with that failure';
        end if;
        if new.written_at is not distinct from old.written_at then
            new.written_at := clock_timestamp();
        end if;
    end if;
    return new;
end
$$
--;
create or replace function redrive.failure_issues_status() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    if new.status_at is not distinct from old.status_at then
        new.status_at := clock_timestamp();
    end if;
    return new;
end
$$
--;
create or replace function redrive.failure_issues_tell() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
begin
    insert into audit_events (at, route, actor, action, selection)
    values (
        clock_timestamp(), new.route, new.written_by, 'change_issue',
        json_build_object(
            'group_id', new.group_id, 'status', new.status, 'owner', new.owner, 'ticket', new.ticket,
            'until', new.ignored_until_at
        )::text
    );
    return null;
end
$$
--;
create or replace function redrive.issue_comments_tell() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
begin
    insert into audit_events (at, route, actor, action, selection, reason)
    values (
        clock_timestamp(), new.route, new.written_by, 'comment', json_build_object('group_id', new.group_id)::text,
        new.text
    );
    return null;
end
$$
--;
create or replace trigger failure_issues_sign
before insert or update of status, owner, ticket, ignored_until_at, written_by on redrive.failure_issues
for each row execute function redrive.failure_issues_sign()
--;
create or replace trigger failure_issues_status before update of status on redrive.failure_issues
for each row execute function redrive.failure_issues_status()
--;
-- After, because an insert that turns into an update runs what comes before both.
create or replace trigger failure_issues_tell
after insert or update of status, owner, ticket, ignored_until_at, written_by on redrive.failure_issues
for each row execute function redrive.failure_issues_tell()
--;
create or replace trigger issue_comments_sign before insert on redrive.issue_comments
for each row execute function redrive.failure_issues_sign()
--;
create or replace trigger issue_comments_tell after insert on redrive.issue_comments
for each row execute function redrive.issue_comments_tell()
--;
-- What people say about groups: signed, told in the audit trail, taken back and never changed; what became of it is the
-- machine's to say.
create or replace function redrive.group_rulings_keep() returns trigger
language plpgsql security definer set search_path = redrive, pg_temp as $$
declare
    is_reviewer constant boolean := session_user <> current_user
        and to_regrole('redrive_reviewer') is not null
        and pg_has_role(session_user, to_regrole('redrive_reviewer'), 'member')
        and not (select rolsuper from pg_catalog.pg_roles where rolname = session_user);
    said text;
    who text;
begin
    if tg_op = 'DELETE' then
        raise exception 'a ruling is taken back (revoked_by), not deleted';
    end if;
    if tg_op = 'INSERT' then
        if is_reviewer then
            new.decided_by := session_user;
        end if;
        if new.words is not null and new.other_group_id is not null then
            raise exception 'a split by words names one group: the other one is made for them';
        end if;
        if new.applied_at is not null or new.refusal is not null or new.revoked_at is not null
        or new.revoked_by is not null then
            raise exception 'a ruling begins as nothing but what somebody says: leave out applied_at, refusal and revocation';
        end if;
        if new.ruling not in ('merge', 'split') then
            raise exception 'no such ruling, %: write merge or split', new.ruling;
        end if;
        said := 'rule_' || new.ruling;
        who := new.decided_by;
    else
        if (new.ruling_id, new.ruling, new.group_id, new.words, new.decided_by, new.note) is distinct from
            (old.ruling_id, old.ruling, old.group_id, old.words, old.decided_by, old.note)
        or (new.other_group_id is distinct from old.other_group_id
            and (old.other_group_id is not null or old.words is null))
        or (old.applied_at is not null and new.applied_at is distinct from old.applied_at) then
            raise exception 'a ruling does not change: take it back (revoked_by) and make another';
        end if;
        if old.revoked_at is not null then  -- for good: what was undone by it is not done again by a null
            if (new.revoked_at, new.revoked_by) is distinct from (old.revoked_at, old.revoked_by) then
                raise exception 'this ruling was taken back already';
            end if;
            return new;
        end if;
        if new.revoked_at is not null or new.revoked_by is not null then
            if is_reviewer then
                new.revoked_by := session_user;
            end if;
            new.revoked_at := coalesce(new.revoked_at, clock_timestamp());
            said := 'revoke_ruling';
            who := new.revoked_by;
        end if;
    end if;
    if said is not null then
        insert into audit_events (at, actor, action, selection, reason)
        values (
            clock_timestamp(), coalesce(who, '?'), said,
            json_build_object(
                'ruling_id', new.ruling_id, 'group_id', new.group_id, 'other_group_id', new.other_group_id,
                'words', new.words
            )::text,
            new.note
        );
    end if;
    return new;
end
$$
--;
create or replace trigger group_rulings_keep before insert or update or delete on redrive.group_rulings
for each row execute function redrive.group_rulings_keep()
--;
-- What is not finished is not deleted by hand: every later run would find that it doesn't add up. Retention removes
-- whole batches of which every message is finished, or was sent and is watched no more.
create or replace function redrive.escalated_messages_stay() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    if tg_op = 'TRUNCATE' then
        raise exception 'escalated_messages is not truncated: a message waits behind this review row: it is decided (discard ends it), not deleted';
    end if;
    if exists (select 1 from messages where messages.message_id = old.message_id
        and messages.state not in ('presumed', 'confirmed', 'suppressed', 'discarded'))
    or exists (select 1 from repeat_copies where repeat_copies.copy_id = old.message_id and repeat_copies.kind = 'suspected') then
        raise exception 'a message waits behind this review row: it is decided (discard ends it), not deleted';
    end if;
    return old;
end
$$
--;
create or replace trigger escalated_messages_stay before delete on redrive.escalated_messages
for each row execute function redrive.escalated_messages_stay()
--;
create or replace trigger escalated_messages_stay_whole before truncate on redrive.escalated_messages
for each statement execute function redrive.escalated_messages_stay()
--;
create or replace function redrive.messages_stay() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    if tg_op = 'TRUNCATE' then
        raise exception 'messages is not truncated: this message is not finished: it is decided in escalated_messages, or put back by redrive restore, not deleted';
    end if;
    if old.state not in ('presumed', 'confirmed', 'suppressed', 'discarded')
    and (old.state <> 'sent' or not exists (
        select 1 from redelivery_attempts as last
        inner join delivery_slices as went on went.slice_id = last.slice_id
        where last.message_id = old.message_id and last.attempt = old.attempts
            and last.outcome is null and not (went.observed_at is null)
    )) then
        raise exception 'this message is not finished: it is decided in escalated_messages, or put back by redrive restore, not deleted';
    end if;
    return old;
end
$$
--;
create or replace trigger messages_stay before delete on redrive.messages
for each row execute function redrive.messages_stay()
--;
create or replace trigger messages_stay_whole before truncate on redrive.messages
for each statement execute function redrive.messages_stay()
--;
create or replace function redrive.redelivery_attempts_stay() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    if tg_op = 'TRUNCATE' then
        raise exception 'redelivery_attempts is not truncated: this attempt is what a return of its message is known by; retention removes it with the message';
    end if;
    if (old.sent_at is not null or old.unknown_at is not null)
    and exists (select 1 from messages where messages.message_id = old.message_id
        and messages.state not in ('presumed', 'confirmed', 'suppressed', 'discarded')) then
        raise exception 'this attempt is what a return of its message is known by; retention removes it with the message';
    end if;
    return old;
end
$$
--;
create or replace trigger redelivery_attempts_stay before delete on redrive.redelivery_attempts
for each row execute function redrive.redelivery_attempts_stay()
--;
create or replace trigger redelivery_attempts_stay_whole before truncate on redrive.redelivery_attempts
for each statement execute function redrive.redelivery_attempts_stay()
--;
create or replace function redrive.repeat_copies_stay() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    if tg_op = 'TRUNCATE' then
        raise exception 'repeat_copies is not truncated: this copy was staged and counts; retention removes it with its batch';
    end if;
    if exists (select 1 from staging_batches where staging_batches.batch_id = old.copy_id / 1048576
        and staging_batches.state in ('recorded', 'settled'))
    and not exists (select 1 from messages where messages.message_id = old.copy_id) then
        raise exception 'this copy was staged and counts; retention removes it with its batch';
    end if;
    return old;
end
$$
--;
create or replace trigger repeat_copies_stay before delete on redrive.repeat_copies
for each row execute function redrive.repeat_copies_stay()
--;
create or replace trigger repeat_copies_stay_whole before truncate on redrive.repeat_copies
for each statement execute function redrive.repeat_copies_stay()
--;
create or replace function redrive.staging_batches_stay() returns trigger
language plpgsql set search_path = redrive, pg_temp as $$
begin
    if tg_op = 'TRUNCATE' then
        raise exception 'staging_batches is not truncated: this batch names a file that alone may hold its messages; retention removes it when they are finished';
    end if;
    if old.state <> 'abandoned' then
        raise exception 'this batch names a file that alone may hold its messages; retention removes it when they are finished';
    end if;
    return old;
end
$$
--;
create or replace trigger staging_batches_stay before delete on redrive.staging_batches
for each row execute function redrive.staging_batches_stay()
--;
create or replace trigger staging_batches_stay_whole before truncate on redrive.staging_batches
for each statement execute function redrive.staging_batches_stay()
