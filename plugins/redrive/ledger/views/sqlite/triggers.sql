-- What people do to a review row by plain UPDATE, made whole: the status, the audit trail; and what can't be decided any
-- more is refused at once. The triggers act on columns that an UPDATE names, whether or not it changes them: deciding
-- the same again after a refusal is a new decision. Where the machine closes a row it sets a new status itself.

-- What looks like a decision and is none is refused at once, or whoever wrote it would take it for done. The machine
-- writes headers too, of a message that came back, but never with a decision. SQLite asks the triggers that were made
-- last first, so what comes too late is told as that.
drop trigger if exists escalated_messages_payload
--;
create trigger escalated_messages_payload
before update of payload, payload_bytes on escalated_messages
when
    (new.payload is not null and new.payload is not old.payload)
    or (new.payload_bytes is not null and new.payload_bytes is not old.payload_bytes)
begin
    select raise(abort, 'payload shows what the message was, and is not what is sent: write decision = ''edit'' and corrected_body');
end
--;
drop trigger if exists escalated_messages_headers
--;
create trigger escalated_messages_headers
before update of headers on escalated_messages
when new.headers is not old.headers and new.decision is not null and new.decision is not old.decision
begin
    select raise(abort, 'headers show what the message had, and are not what is sent: write decision = ''edit'' and corrected_headers');
end
--;
drop trigger if exists escalated_messages_correction
--;
create trigger escalated_messages_correction
before update of corrected_body, corrected_headers on escalated_messages
when
    new.decision is not 'edit'
    and (
        (new.corrected_body is not null and new.corrected_body is not old.corrected_body)
        or (new.corrected_headers is not null and new.corrected_headers is not old.corrected_headers)
    )
begin
    select raise(abort, 'only decision = ''edit'' sends a correction: write it in the same statement');
end
--;
drop trigger if exists escalated_messages_status
--;
create trigger escalated_messages_status
before update of status on escalated_messages
when new.status = 'decided' and new.decision is null and old.status <> 'decided'
begin
    select raise(abort, 'status follows from the decision: write decision and decided_by');
end
--;
drop trigger if exists escalated_messages_refuse
--;
create trigger escalated_messages_refuse
before update of decision, corrected_body, corrected_headers, note, decided_by, approved_by on escalated_messages
when old.applied_at is not null or old.status = 'applied'
begin
    select raise(abort, 'this escalation was applied already; a message that fails again gets a new row');
end
--;
drop trigger if exists escalated_messages_too_late
--;
create trigger escalated_messages_too_late
before update of decision, corrected_body, corrected_headers, note, decided_by, approved_by on escalated_messages
when
    old.status = 'decided'
    and new.status not in ('applied', 'refused', 'reopened')
    and exists (
        select 1
        from messages
        where
            messages.message_id = old.message_id
            and (
                messages.state not in ('escalated', 'restoring', 'restore_unknown')
                -- it was released before: if it can't be put back, it is sent as that was decided
                or (messages.state = 'restoring' and coalesce(messages.plan, '') = 'release')
            )
    )
begin
    select raise(abort, 'too late: this decision was taken up already');
end
--;
-- Before the row is written, so that the trigger about notes, which runs after it, finds what is told already.
drop trigger if exists escalated_messages_tell
--;
create trigger escalated_messages_tell
before update of decision, corrected_body, corrected_headers on escalated_messages
when
    new.decision is not null
    and (new.status = old.status or new.status not in ('applied', 'refused', 'reopened'))
begin
    select raise(abort, 'no such decision: write redeliver, discard, edit or not_there, or null to take it back')
    where new.decision not in ('redeliver', 'discard', 'edit', 'not_there');
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, coalesce(new.decided_by, '?'),
        'decide_' || new.decision, new.message_id, new.note
    );
end
--;
drop trigger if exists escalated_messages_decide
--;
create trigger escalated_messages_decide
after update of decision, corrected_body, corrected_headers on escalated_messages
when
    new.decision is not null
    and (new.status = old.status or new.status not in ('applied', 'refused', 'reopened'))
begin
    update escalated_messages
    set
        status = 'decided',
        refusal = null,
        decided_at = coalesce(
            case when new.decided_at is not old.decided_at then new.decided_at end,
            strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'
        ),
        -- a second person approved what was decided then, not what is decided now
        approved_by = case when new.approved_by is not old.approved_by then new.approved_by end
    where escalation_id = new.escalation_id;
end
--;
-- A moment that somebody writes becomes what the ledger compares with, whatever way of writing it SQLite knows.
drop trigger if exists escalated_messages_decided_at
--;
create trigger escalated_messages_decided_at
after update of decided_at on escalated_messages
when
    new.decided_at is not null
    and (new.decided_at not like '____-__-__ __:__:__.______' or julianday(new.decided_at) is null)
begin
    select raise(abort, 'decided_at is no time; leave it out, or write YYYY-MM-DD HH:MM:SS, in UTC')
    where julianday(new.decided_at) is null;
    update escalated_messages
    set decided_at = strftime('%Y-%m-%d %H:%M:%f', new.decided_at) || '000'
    where escalation_id = new.escalation_id and decided_at = new.decided_at;
end
--;
drop trigger if exists escalated_messages_undecide
--;
create trigger escalated_messages_undecide
after update of decision, corrected_body, corrected_headers on escalated_messages
when new.decision is null and new.status in ('decided', 'open') and old.status = 'decided'
begin
    update escalated_messages
    set status = 'open', decided_at = null, approved_by = null
    where escalation_id = new.escalation_id;
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, coalesce(new.decided_by, old.decided_by, '?'),
        'withdraw_' || old.decision, new.message_id, new.note
    );
end
--;
-- Another note or another name, and no decision: told, and what was approved was not this. Whoever puts a name to a
-- decision that stands takes it over. No trigger knows which other columns the UPDATE names, so what it tells shows
-- whether it was a decision.
drop trigger if exists escalated_messages_reword
--;
create trigger escalated_messages_reword
after update of note, decided_by on escalated_messages
when
    (new.note is not old.note or new.decided_by is not old.decided_by)
    and new.status = old.status
    and new.decision is old.decision
    and not exists (
        select 1
        from audit_events
        where
            event_id = (select max(event_id) from audit_events where message_id = new.message_id)
            and actor = new.decided_by
            and action = 'decide_' || new.decision
            and reason is new.note
    )
begin
    update escalated_messages
    set
        decided_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000',
        approved_by = case when new.approved_by is not old.approved_by then new.approved_by end
    where escalation_id = new.escalation_id and status = 'decided';
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, coalesce(new.decided_by, '?'),
        case
            when new.status = 'decided' and new.decided_by is not old.decided_by then 'decide_' || new.decision
            else 'note'
        end,
        new.message_id, new.note
    );
end
--;
drop trigger if exists escalated_messages_approve
--;
create trigger escalated_messages_approve
after update of approved_by on escalated_messages
when
    new.approved_by is not old.approved_by
    -- those that a decision or another status makes void are told with it
    and (new.approved_by is not null or (new.status = old.status and new.decided_at is old.decided_at))
begin
    insert into audit_events (at, route, actor, action, message_id, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route,
        coalesce(new.approved_by, '?'),  -- nobody gives a name with an approval that is taken back
        case when new.approved_by is null then 'unapprove_' else 'approve_' end || coalesce(new.decision, 'nothing'),
        new.message_id, new.note
    );
end
--;
drop trigger if exists escalated_messages_second_person
--;
create trigger escalated_messages_second_person
before update of approved_by on escalated_messages
when
    new.approved_by is not null
    and new.approved_by is not old.approved_by
    and lower(trim(new.approved_by)) = lower(trim(new.decided_by))
begin
    select raise(abort, 'a second person has to approve, not the one who decided');
end
--;
-- What people were shown of it is not what it is any more. Writers come one by one, so the numbers grow as they do.
drop trigger if exists escalated_messages_changed
--;
create trigger escalated_messages_changed
after update of status, group_id, reason, decision, decided_by, decided_at, approved_by, note, corrected_body, corrected_headers
on escalated_messages
begin
    update escalated_messages
    set changed = (select coalesce(max(changed), 0) + 1 from escalated_messages where changed is not null)
    where escalation_id = new.escalation_id;
end
--;
-- A decision that also holds for what comes later: times become what the ledger compares with, whatever way of writing
-- them SQLite knows, and the trail is kept. It is revoked or runs out; it never changes and never goes away.
drop trigger if exists standing_decisions_made
--;
create trigger standing_decisions_made
after insert on standing_decisions
begin
    select raise(abort, 'created_at or until_at is no time; write YYYY-MM-DD HH:MM:SS, in UTC')
    where julianday(new.created_at) is null or julianday(new.until_at) is null;
    select raise(abort, 'there is no such group')  -- a foreign key, which SQLite looks at only where it is asked to
    where not exists (select 1 from failure_groups where failure_groups.group_id = new.group_id);
    select raise(abort, 'this group was merged into an older one, which review_groups shows: decide about that one')
    where exists (select 1 from group_aliases where group_aliases.group_id = new.group_id);
    select raise(abort, 'until_at is not after created_at')
    where julianday(new.until_at) <= julianday(new.created_at);
    select raise(abort, 'a standing decision begins without an approval and without a revocation')
    where new.approved_by is not null or new.revoked_at is not null or new.revoked_by is not null;
    update standing_decisions
    set
        created_at = strftime('%Y-%m-%d %H:%M:%f', new.created_at) || '000',
        until_at = strftime('%Y-%m-%d %H:%M:%f', new.until_at) || '000'
    where standing_id = new.standing_id;
    insert into audit_events (at, route, actor, action, selection, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.decided_by,
        'make_standing_' || new.decision,
        json_object('standing_id', new.standing_id, 'group_id', new.group_id, 'until', new.until_at), new.note
    );
end
--;
drop trigger if exists standing_decisions_keep
--;
create trigger standing_decisions_keep
before update on standing_decisions
when
    new.standing_id <> old.standing_id
    or new.route is not old.route
    or new.group_id <> old.group_id
    or new.decision <> old.decision
    or new.decided_by <> old.decided_by
    or new.note <> old.note
    -- but for the fractions of a second that the ledger's way of writing times leaves away
    or abs(coalesce(julianday(new.created_at), 0) - julianday(old.created_at)) > 0.00001
    or abs(coalesce(julianday(new.until_at), 0) - julianday(old.until_at)) > 0.00001
begin
    select raise(abort, 'a standing decision does not change: revoke it and make another');
end
--;
drop trigger if exists standing_decisions_end_once
--;
create trigger standing_decisions_end_once
before update of revoked_at, revoked_by, approved_by on standing_decisions
when old.revoked_at is not null
begin
    select raise(abort, 'this standing decision was revoked already');
end
--;
drop trigger if exists standing_decisions_second_person
--;
create trigger standing_decisions_second_person
before update of approved_by on standing_decisions
when new.approved_by is not null and lower(trim(new.approved_by)) in ('', lower(trim(new.decided_by)))
begin
    select raise(abort, 'a second person has to approve, not the one who decided');
end
--;
drop trigger if exists standing_decisions_approve
--;
create trigger standing_decisions_approve
after update of approved_by on standing_decisions
when new.approved_by is not null and new.approved_by is not old.approved_by
begin
    insert into audit_events (at, route, actor, action, selection, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.approved_by,
        'approve_standing_' || new.decision,
        json_object('standing_id', new.standing_id, 'group_id', new.group_id), new.note
    );
end
--;
drop trigger if exists standing_decisions_revoke
--;
create trigger standing_decisions_revoke
after update of revoked_at, revoked_by on standing_decisions
when old.revoked_at is null and (new.revoked_at is not null or new.revoked_by is not null)
begin
    select raise(abort, 'revoked_at is no time; leave it out, or write YYYY-MM-DD HH:MM:SS, in UTC')
    where new.revoked_at is not null and julianday(new.revoked_at) is null;
    insert into audit_events (at, route, actor, action, selection, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.revoked_by,
        'revoke_standing_' || new.decision,
        json_object('standing_id', new.standing_id, 'group_id', new.group_id), new.note
    );
    update standing_decisions
    set revoked_at = strftime('%Y-%m-%d %H:%M:%f', coalesce(new.revoked_at, 'now')) || '000'
    where standing_id = new.standing_id and revoked_at is null;
end
--;
drop trigger if exists standing_decisions_stay
--;
create trigger standing_decisions_stay
before delete on standing_decisions
begin
    select raise(abort, 'a standing decision is revoked, not deleted');
end
--;
-- How far people are with a failure, and what they say about it: times become what the ledger compares with, and the
-- trail is kept. A status begins when it is written, whether or not it is another one: what was resolved again is not
-- regressed.
drop trigger if exists failure_issues_written
--;
create trigger failure_issues_written
after insert on failure_issues
begin
    select raise(abort, 'ignored_until_at is no time; write YYYY-MM-DD HH:MM:SS, in UTC')
    where new.ignored_until_at is not null and julianday(new.ignored_until_at) is null;
    select raise(abort, 'there is no such group')  -- a foreign key, which SQLite looks at only where it is asked to
    where not exists (select 1 from failure_groups where failure_groups.group_id = new.group_id);
    update failure_issues
    set
        written_at = strftime('%Y-%m-%d %H:%M:%f', new.written_at) || '000',
        status_at = strftime('%Y-%m-%d %H:%M:%f', new.status_at) || '000'
    where route = new.route and group_id = new.group_id;
    update failure_issues
    set ignored_until_at = strftime('%Y-%m-%d %H:%M:%f', new.ignored_until_at) || '000'
    where
        route = new.route and group_id = new.group_id
        and new.ignored_until_at <> strftime('%Y-%m-%d %H:%M:%f', new.ignored_until_at) || '000';
    insert into audit_events (at, route, actor, action, selection)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.written_by, 'change_issue',
        json_object(
            'group_id', new.group_id, 'status', new.status, 'owner', new.owner, 'ticket', new.ticket,
            'until', new.ignored_until_at
        )
    );
end
--;
drop trigger if exists failure_issues_rewritten
--;
create trigger failure_issues_rewritten
after update of status, owner, ticket, ignored_until_at, written_by on failure_issues
when  -- not what the trigger above does: the same moment in the ledger's way of writing it
    new.ignored_until_at is old.ignored_until_at
    or abs(coalesce(julianday(new.ignored_until_at), 0) - coalesce(julianday(old.ignored_until_at), 0)) > 0.00001
begin
    select raise(abort, 'ignored_until_at is no time; write YYYY-MM-DD HH:MM:SS, in UTC')
    where new.ignored_until_at is not null and julianday(new.ignored_until_at) is null;
    select raise(abort, 'a word about a failure stays with that failure')
    where new.route <> old.route or new.group_id <> old.group_id;
    update failure_issues
    set
        written_at = strftime(
            '%Y-%m-%d %H:%M:%f', case when new.written_at is not old.written_at then new.written_at else 'now' end
        ) || '000',
        ignored_until_at = strftime('%Y-%m-%d %H:%M:%f', new.ignored_until_at) || '000'
    where route = new.route and group_id = new.group_id;
    insert into audit_events (at, route, actor, action, selection)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.written_by, 'change_issue',
        json_object(
            'group_id', new.group_id, 'status', new.status, 'owner', new.owner, 'ticket', new.ticket,
            'until', new.ignored_until_at
        )
    );
end
--;
drop trigger if exists failure_issues_status
--;
create trigger failure_issues_status
after update of status on failure_issues
begin
    update failure_issues
    set
        status_at = strftime(
            '%Y-%m-%d %H:%M:%f', case when new.status_at is not old.status_at then new.status_at else 'now' end
        ) || '000'
    where route = new.route and group_id = new.group_id;
end
--;
drop trigger if exists issue_comments_written
--;
create trigger issue_comments_written
after insert on issue_comments
begin
    select raise(abort, 'there is no such group')
    where not exists (select 1 from failure_groups where failure_groups.group_id = new.group_id);
    update issue_comments
    set written_at = strftime('%Y-%m-%d %H:%M:%f', new.written_at) || '000'
    where comment_id = new.comment_id;
    insert into audit_events (at, route, actor, action, selection, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.route, new.written_by, 'comment',
        json_object('group_id', new.group_id), new.text
    );
end
--;
-- What people say about groups: told in the audit trail, taken back and never changed; what became of it is the
-- machine's to say.
drop trigger if exists group_rulings_made
--;
create trigger group_rulings_made
after insert on group_rulings
begin
    select raise(abort, 'there is no such group')  -- a foreign key, which SQLite looks at only where it is asked to
    where
        not exists (select 1 from failure_groups where failure_groups.group_id = new.group_id)
        or (
            new.other_group_id is not null
            and not exists (select 1 from failure_groups where failure_groups.group_id = new.other_group_id)
        );
    select raise(abort, 'a split by words names one group: the other one is made for them')
    where new.words is not null and new.other_group_id is not null;
    select raise(abort, 'a ruling begins as nothing but what somebody says: leave out applied_at, refusal and revocation')
    where
        new.applied_at is not null or new.refusal is not null or new.revoked_at is not null
        or new.revoked_by is not null;
    insert into audit_events (at, actor, action, selection, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.decided_by, 'rule_' || new.ruling,
        json_object(
            'ruling_id', new.ruling_id, 'group_id', new.group_id, 'other_group_id', new.other_group_id,
            'words', new.words
        ),
        new.note
    );
end
--;
drop trigger if exists group_rulings_keep
--;
create trigger group_rulings_keep
before update on group_rulings
when
    new.ruling_id <> old.ruling_id
    or new.ruling <> old.ruling
    or new.group_id <> old.group_id
    or (new.other_group_id is not old.other_group_id and (old.other_group_id is not null or old.words is null))
    or new.words is not old.words
    or new.decided_by <> old.decided_by
    or new.note <> old.note
    or (old.applied_at is not null and new.applied_at is not old.applied_at)
begin
    select raise(abort, 'a ruling does not change: take it back (revoked_by) and make another');
end
--;
drop trigger if exists group_rulings_end_once
--;
create trigger group_rulings_end_once
before update of revoked_at, revoked_by on group_rulings
when old.revoked_at is not null
begin
    select raise(abort, 'this ruling was taken back already');
end
--;
drop trigger if exists group_rulings_revoke
--;
create trigger group_rulings_revoke
after update of revoked_at, revoked_by on group_rulings
when old.revoked_at is null and (new.revoked_at is not null or new.revoked_by is not null)
begin
    select raise(abort, 'revoked_at is no time; leave it out, or write YYYY-MM-DD HH:MM:SS, in UTC')
    where new.revoked_at is not null and julianday(new.revoked_at) is null;
    insert into audit_events (at, actor, action, selection, reason)
    values (
        strftime('%Y-%m-%d %H:%M:%f', 'now') || '000', new.revoked_by, 'revoke_ruling',
        json_object('ruling_id', new.ruling_id), new.note
    );
    update group_rulings
    set revoked_at = strftime('%Y-%m-%d %H:%M:%f', coalesce(new.revoked_at, 'now')) || '000'
    where ruling_id = new.ruling_id and revoked_at is null;
end
--;
drop trigger if exists group_rulings_stay
--;
create trigger group_rulings_stay
before delete on group_rulings
begin
    select raise(abort, 'a ruling is taken back (revoked_by), not deleted');
end
--;
-- What is not finished is not deleted by hand: every later run would find that it doesn't add up. Retention removes
-- whole batches of which every message is finished, or was sent and is watched no more.
drop trigger if exists escalated_messages_stay
--;
create trigger escalated_messages_stay
before delete on escalated_messages
when
    exists (select 1 from messages where messages.message_id = old.message_id
        and messages.state not in ('presumed', 'confirmed', 'suppressed', 'discarded'))
    or exists (select 1 from repeat_copies where repeat_copies.copy_id = old.message_id and repeat_copies.kind = 'suspected')
begin
    select raise(abort, 'a message waits behind this review row: it is decided (discard ends it), not deleted');
end
--;
drop trigger if exists messages_stay
--;
create trigger messages_stay
before delete on messages
when
    -- not an IN: SQLite makes a table of its words for each row that is deleted
    old.state <> 'presumed' and old.state <> 'confirmed' and old.state <> 'suppressed' and old.state <> 'discarded'
    and (old.state <> 'sent' or not exists (
        select 1 from redelivery_attempts as last
        inner join delivery_slices as went on went.slice_id = last.slice_id
        where last.message_id = old.message_id and last.attempt = old.attempts
            and last.outcome is null and not (went.observed_at is null)
    ))
begin
    select raise(abort, 'this message is not finished: it is decided in escalated_messages, or put back by redrive restore, not deleted');
end
--;
drop trigger if exists redelivery_attempts_stay
--;
create trigger redelivery_attempts_stay
before delete on redelivery_attempts
when
    (old.sent_at is not null or old.unknown_at is not null)
    and exists (select 1 from messages where messages.message_id = old.message_id
        and messages.state <> 'presumed' and messages.state <> 'confirmed'
        and messages.state <> 'suppressed' and messages.state <> 'discarded')
begin
    select raise(abort, 'this attempt is what a return of its message is known by; retention removes it with the message');
end
--;
drop trigger if exists repeat_copies_stay
--;
create trigger repeat_copies_stay
before delete on repeat_copies
when
    exists (select 1 from staging_batches where staging_batches.batch_id = old.copy_id / 1048576
        and staging_batches.state in ('recorded', 'settled'))
    and not exists (select 1 from messages where messages.message_id = old.copy_id)
begin
    select raise(abort, 'this copy was staged and counts; retention removes it with its batch');
end
--;
drop trigger if exists staging_batches_stay
--;
create trigger staging_batches_stay
before delete on staging_batches
when
    old.state <> 'abandoned'
begin
    select raise(abort, 'this batch names a file that alone may hold its messages; retention removes it when they are finished');
end
