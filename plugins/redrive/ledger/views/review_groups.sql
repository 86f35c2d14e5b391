-- What people have to decide, one row per route and group, largest first when ordered by open_messages.
-- trend compares what was escalated within the last day with the day before it; last_… is the newest decision of people
-- about the failure that was carried out: none about a second copy, or about what may have been sent already; suggested_decision is for all that nobody has decided, and null where that differs;
-- suggested_because says what speaks for it, outcomes before reasons.
create view review_groups as
with reviews as (
    select
        route,
        group_id,
        sum(case when status in ('open', 'refused', 'reopened') then 1 else 0 end) as open_messages,
        sum(case when status = 'decided' then 1 else 0 end) as decided_messages,
        min(case when status in ('open', 'refused', 'reopened') then first_enqueued_at end) as oldest,
        min(case when status in ('open', 'refused', 'reopened') then escalation_id end) as example_id,
        min(case when status in ('open', 'refused', 'reopened') then suggested_decision end) as one_suggestion,
        max(case when status in ('open', 'refused', 'reopened') then suggested_decision end) as another_suggestion,
        sum(case when escalated_at >= {ago: 1 day} then 1 else 0 end) as last_day,
        sum(case when escalated_at >= {ago: 2 days} and escalated_at < {ago: 1 day} then 1 else 0 end) as day_before
    from escalated_messages
    group by route, group_id
),

outcomes as (
    select
        route,
        coalesce(group_id, -1) as joined_id,  -- a null equals nothing, and "or both are null" is looked for one by one
        sum(case when sent_at is not null then 1 else 0 end) as redelivered,
        -- what a consumer asked to have later did not fail, nor stay
        sum(
            case when outcome = 'returned' and coalesce(return_kind, 'dead_letter') = 'dead_letter' then 1 else 0 end
        ) as returned,
        sum(case when outcome in ('presumed', 'confirmed') then 1 else 0 end) as stayed_away
    from redelivery_attempts
    group by route, group_id
)

select
    reviews.route,
    reviews.group_id,
    failure_groups.cause,
    reviews.open_messages,
    reviews.decided_messages,
    reviews.oldest,
    failure_groups.template,
    failure_groups.example,
    failure_groups.messages as seen_in_all,
    failure_groups.first_seen_at,
    failure_groups.last_seen_at,
    coalesce(outcomes.redelivered, 0) as redelivered,
    coalesce(outcomes.returned, 0) as returned,
    coalesce(outcomes.stayed_away, 0) as stayed_away,
    case when reviews.one_suggestion = reviews.another_suggestion then reviews.one_suggestion end as suggested_decision,
    first_one.reason as why,
    reviews.example_id,
    reviews.last_day,
    reviews.day_before,
    case
        when reviews.last_day > reviews.day_before then 'rising'
        when reviews.last_day < reviews.day_before then 'falling'
        else 'steady'
    end as trend,
    last_one.decision as last_decision,
    last_one.decided_by as last_decided_by,
    last_one.decided_at as last_decided_at,
    case
        when outcomes.stayed_away + outcomes.returned > 0
            then
                outcomes.stayed_away || ' of ' || (outcomes.stayed_away + outcomes.returned)
                || ' redelivered stayed away'
        when last_one.decision is not null
            then 'decided last time: ' || last_one.decision || ' by ' || last_one.decided_by
        else first_one.reason
    end as suggested_because,
    coalesce(issue_state.status, 'open') as issue_status,
    issue_state.owner,
    issue_state.ticket
from reviews
left join issue_state on issue_state.route = reviews.route and issue_state.group_id = reviews.group_id
left join failure_groups on failure_groups.group_id = reviews.group_id
left join escalated_messages as first_one on first_one.escalation_id = reviews.example_id
left join
    escalated_messages as last_one
    on
        last_one.escalation_id = case
            when reviews.group_id is null
                then (
                    select answered.escalation_id
                    from escalated_messages as answered
                    where
                        answered.route = reviews.route and answered.group_id is null
                        and answered.status = 'applied' and answered.question = 'failure'
                    order by answered.decided_at desc, answered.escalation_id desc
                    limit 1
                )
            else (
                select answered.escalation_id
                from escalated_messages as answered
                where
                    answered.route = reviews.route and answered.group_id = reviews.group_id
                    and answered.status = 'applied' and answered.question = 'failure'
                order by answered.decided_at desc, answered.escalation_id desc
                limit 1
            )
        end
left join outcomes on outcomes.route = reviews.route and outcomes.joined_id = coalesce(reviews.group_id, -1)
where reviews.open_messages > 0 or reviews.decided_messages > 0
