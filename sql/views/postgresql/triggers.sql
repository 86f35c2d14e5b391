-- A decision made by plain UPDATE moves the row to 'decided'; what can't be decided any more is refused at once.
create or replace function redrive.escalated_messages_decide() returns trigger language plpgsql as $$
begin
    if new.status = 'applied' and old.status = 'applied'
        and (new.decision is distinct from old.decision or new.corrected_body is distinct from old.corrected_body) then
        raise exception 'this escalation was applied already; a message that fails again gets a new row';
    end if;
    if new.decision is not null and new.status in ('open', 'refused', 'reopened')
        and (new.decision is distinct from old.decision or new.decided_at is distinct from old.decided_at
             or new.decided_by is distinct from old.decided_by) then
        new.status := 'decided';
        new.refusal := null;
        if new.decided_at is not distinct from old.decided_at then
            new.decided_at := clock_timestamp();
        end if;
        insert into redrive.audit_events (at, route, actor, action, message_id, reason)
        values (clock_timestamp(), new.route, new.decided_by, 'decide ' || new.decision, new.message_id, new.note);
    elsif new.decision is null and new.status = 'decided' then
        new.status := 'open';
        new.decided_at := null;
    end if;
    return new;
end
$$
--;
drop trigger if exists escalated_messages_decide on redrive.escalated_messages
--;
create trigger escalated_messages_decide before update on redrive.escalated_messages
for each row execute function redrive.escalated_messages_decide()
