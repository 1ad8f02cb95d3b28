%% Plays scenarios of supervisors and of bare processes on a real Erlang/OTP and prints their traces,
%% one a line.
%%
%% Reads Erlang terms (file:consult), writes JSON in the format of the recorded traces, so that
%% random scenarios can be compared with keepwell where Erlang is installed. Run it with one
%% scheduler (+S 1:1): the order of events is then the order in which they happen.
-module(otp_recorder).
-behaviour(gen_server).
-export([main/1, start_worker/2, start_dynamic/2]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, handle_continue/2, terminate/2]).

main([File]) ->
    logger:set_primary_config(level, none),
    {ok, Scenarios} = file:consult(File),
    lists:foreach(fun record/1, Scenarios),
    halt(0).

record(Scenario) ->
    try
        io:put_chars([json(play(Scenario)), $\n])
    catch
        _:Reason:Stack ->
            io:format(standard_error, "~p~n~p~n~p~n", [Scenario, Reason, Stack]),
            halt(1)
    end.

%% -- the book: events in order, start attempts, plans, last incarnations --------------------------

book() ->
    receive
        {call, From, Ref, Request} ->
            {Answer, Book} = book(Request, get(book)),
            put(book, Book),
            From ! {Ref, Answer},
            book();
        {'DOWN', _, process, Pid, Reason} ->
            Book = #{events := Events, labels := Labels} = get(book),
            #{Pid := {Id, N}} = Labels,
            Event = #{ev => exit, id => Id, n => N, reason => reason(Reason)},
            put(book, Book#{events := [Event | Events]}),
            book();
        stop ->
            ok
    end.

book({init, Id, Pid, Plan}, Book) ->
    #{events := Events, attempts := Attempts, plans := Plans, labels := Labels, pids := Pids} = Book,
    N = maps:get(Id, Attempts, 0) + 1,
    {Since, Outcomes} = maps:get(Id, Plans, {0, Plan}),
    Outcome = lists:nth(min(N - Since, length(Outcomes)), Outcomes),
    Event = #{ev => init, id => Id, n => N, outcome => Outcome},
    Book1 = Book#{events := [Event | Events], attempts := Attempts#{Id => N}},
    case Outcome of
        ok ->
            monitor(process, Pid),
            {{N, ok}, Book1#{labels := Labels#{Pid => {Id, N}}, pids := Pids#{Id => Pid}}};
        _ ->
            {{N, Outcome}, Book1}
    end;
book({event, Event}, Book = #{events := Events}) ->
    {ok, Book#{events := [Event | Events]}};
book({set_init, Id, Plan}, Book = #{attempts := Attempts, plans := Plans}) ->
    {ok, Book#{plans := Plans#{Id => {maps:get(Id, Attempts, 0), Plan}}}};
book(take, Book = #{events := Events}) ->
    {lists:reverse(Events), Book#{events := []}};
book({pid, Id}, Book = #{pids := Pids}) ->
    {maps:get(Id, Pids, none), Book};
book({label, Pid}, Book = #{labels := Labels}) ->
    {maps:get(Pid, Labels, none), Book};
book(pids, Book = #{labels := Labels}) ->
    {maps:keys(Labels), Book}.

ask(Request) ->
    Ref = make_ref(),
    book ! {call, self(), Ref, Request},
    receive {Ref, Answer} -> Answer end.

%% -- the actors -----------------------------------------------------------------------------------

start_worker(Id, Behaviour) -> gen_server:start_link(?MODULE, {worker, Id, Behaviour}, []).

start_dynamic(Behaviour, Id) -> start_worker(Id, Behaviour).

init({worker, Id, Behaviour}) ->
    process_flag(trap_exit, maps:get(trap_exit, Behaviour, false)),
    {N, Outcome} = ask({init, Id, self(), maps:get(init, Behaviour, [ok])}),
    case Outcome of
        ok -> {ok, #{id => Id, n => N, plan => maps:get(on_terminate, Behaviour, ok)}};
        ignore -> ignore;
        #{stop := R} -> {stop, to_reason(R)};
        #{exit := R} -> exit(to_reason(R));
        #{raise := R} -> error(to_reason(R))
    end;
init({server, stop}) -> {stop, bad};
init({server, raise}) -> error(bad);
init({server, ignore}) -> ignore;
init({server, self_cast_then_continue}) ->
    gen_server:cast(self(), early_cast),
    {ok, {server, []}, {continue, first}};
init({server, _}) ->
    {ok, {server, []}};
init({supervisor, Id, Settings}) ->
    {_, ok} = ask({init, Id, self(), [ok]}),
    Strategy = maps:get(strategy, Settings, one_for_one),
    Specs = [spec(C, Strategy) || C <- maps:get(children, Settings, [])],
    {ok, {maps:with([strategy, intensity, period, auto_shutdown], Settings), Specs}}.

spec(Child = #{id := Id}, Strategy) ->
    Behaviour = maps:get(behaviour, Child, #{}),
    Start =
        case {Child, Strategy} of
            {#{supervisor := S}, _} -> {supervisor, start_link, [?MODULE, {supervisor, Id, S}]};
            {_, simple_one_for_one} -> {?MODULE, start_dynamic, [Behaviour]};
            _ -> {?MODULE, start_worker, [Id, Behaviour]}
        end,
    (maps:with([id, restart, shutdown, significant, type], Child))#{start => Start}.

handle_call(ping, _, State) -> {reply, pong, State};
handle_call(seen, _, {server, Notes} = S) -> {reply, lists:reverse(Notes), S};
handle_call(#{reply := V}, _, {server, Notes}) -> {reply, V, {server, [V | Notes]}};
handle_call(crash, _, _) -> exit(boom);
handle_call(error, _, _) -> error(boom);
handle_call(stop, _, S) -> {stop, normal, S};
handle_call(stop_reply, _, S) -> {stop, normal, bye, S};
handle_call(noreply, _, S) -> {noreply, S};
handle_call(reply_then_crash, From, _) -> gen_server:reply(From, early), exit(boom);
handle_call(self_call, _, S) -> {reply, gen_server:call(self(), seen, 100), S};
handle_call(continue, _, S) -> {reply, ok, S, {continue, after_call}};
handle_call(hibernate, _, S) -> {reply, ok, S, hibernate}.

handle_continue(What, {server, Notes}) -> {noreply, {server, [{continue, What} | Notes]}}.

handle_cast(crash, _) -> exit(boom);
handle_cast(Note, {server, Notes}) -> {noreply, {server, [Note | Notes]}}.

handle_info({die, exit, R}, _) -> exit(to_reason(R));
handle_info({die, error, R}, _) -> error(to_reason(R));
handle_info({die, stop, R}, State) -> {stop, to_reason(R), State};
handle_info(Note, {server, _} = S) -> handle_cast(Note, S);
handle_info({'EXIT', _, R}, State = #{id := Id}) ->
    ask({event, #{ev => info_exit, id => Id, reason => reason(R)}}),
    {noreply, State}.

terminate(_, {server, _}) ->
    ok;
terminate(Reason, #{id := Id, n := N, plan := Plan}) ->
    ask({event, #{ev => terminate, id => Id, n => N, reason => reason(Reason)}}),
    case Plan of
        ok -> ok;
        hang -> receive never -> ok end;
        #{sleep := Ms} -> timer:sleep(Ms);
        #{exit := R} -> exit(to_reason(R))
    end.

%% Starts the tree, or sends exit signals.
outsider() ->
    receive
        {From, {start, Settings}} ->
            From ! {self(), supervisor:start_link(?MODULE, {supervisor, root, Settings})};
        {From, {exit, Pid, Reason}} ->
            From ! {self(), exit(Pid, Reason)};
        {'EXIT', _, _} ->
            ok
    end,
    outsider().

order(Outsider, Order) ->
    Outsider ! {self(), Order},
    receive {Outsider, Answer} -> Answer end.

%% -- the scenario ---------------------------------------------------------------------------------

play(#{supervisor := Settings, steps := Steps}) ->
    register(book, spawn(fun() ->
        put(book, #{events => [], attempts => #{}, plans => #{}, labels => #{}, pids => #{}}),
        book()
    end)),
    Outsider = fun() -> process_flag(trap_exit, true), outsider() end,
    put(parent, spawn(Outsider)),
    put(stranger, spawn(Outsider)),
    put(root, none),
    Traces = steps(Steps, Settings),
    Final = final(get(root)),
    [exit(Pid, kill) || Pid <- [get(root), get(parent), get(stranger)], is_pid(Pid)],
    [begin exit(Pid, kill), gone(Pid) end || Pid <- ask(pids)],
    Down = monitor(process, book),
    book ! stop,
    receive {'DOWN', Down, _, _, _} -> ok end,
    #{steps => Traces, final => Final};
play(#{steps := Steps}) ->
    play_processes(Steps).

%% Ends early when the root is gone: what remains has nobody to ask.
steps([], _) ->
    [];
steps([Step = #{op := Op} | Rest], Settings) ->
    Result = step(Op, Step, Settings),
    settle(),
    Trace = #{op => Op, result => Result, events => ask(take)},
    case get(root) of
        Root when is_pid(Root) ->
            case is_process_alive(Root) of
                true -> [Trace | steps(Rest, Settings)];
                false -> [Trace]
            end;
        _ ->
            [Trace]
    end.

step(start, _, Settings) ->
    case order(get(parent), {start, Settings}) of
        {ok, Pid} -> put(root, Pid), ok;
        {error, R} -> #{error => reason(R)}
    end;
step(crash, #{child := Id, how := How, reason := Reason} = Step, _) ->
    case ask({pid, Id}) of
        none ->
            untouched;
        Pid when How =:= signal ->
            order(get(stranger), {exit, Pid, to_reason(Reason)}),
            [gone(Pid) || not maps:is_key(survives, Step)],
            ok;
        Pid ->
            Pid ! {die, How, Reason},
            gone(Pid),
            ok
    end;
step(crash_many, #{children := Ids}, _) ->
    Pids = [ask({pid, Id}) || Id <- Ids],
    case lists:member(none, Pids) of
        true ->
            untouched;
        false ->
            sys:suspend(get(root)),
            [begin exit(Pid, kill), gone(Pid) end || Pid <- Pids],
            sys:resume(get(root)),
            ok
    end;
step(set_init, #{child := Id, plan := Plan}, _) ->
    ask({set_init, Id, Plan});
step(signal_supervisor, #{reason := Reason}, _) ->
    order(get(parent), {exit, get(root), to_reason(Reason)}),
    gone(get(root)),
    ok;
step(start_child, #{spec := Spec}, _) ->
    started(supervisor:start_child(get(root), spec(Spec, one_for_one)));
step(start_child, #{args := Args}, _) ->
    started(supervisor:start_child(get(root), Args));
step(which_children, _, _) ->
    [info(C) || C <- supervisor:which_children(get(root))];
step(count_children, _, _) ->
    maps:from_list(supervisor:count_children(get(root)));
step(Op, Step, _) ->
    Target = case Step of #{child := Id} -> Id; #{pid_of := Id} -> ask({pid, Id}) end,
    case Target of none -> untouched; _ -> request(Op, Target) end.

request(terminate_child, Id) -> done(supervisor:terminate_child(get(root), Id));
request(delete_child, Id) -> done(supervisor:delete_child(get(root), Id));
request(restart_child, Id) -> started(supervisor:restart_child(get(root), Id));
request(get_childspec, Id) ->
    case supervisor:get_childspec(get(root), Id) of
        {ok, Spec} -> #{ok => maps:with([id, restart, shutdown, significant, type], Spec)};
        {error, Word} -> #{error => Word}
    end.

done(ok) -> ok;
done({error, Word}) -> #{error => Word}.

started({ok, undefined}) -> #{ok => null};
started({ok, Pid}) -> #{ok => label(Pid)};
started({error, {already_started, Pid}}) -> #{error => #{already_started => label(Pid)}};
started({error, {R, Child}}) when element(1, Child) =:= child -> #{error => reason(R)};
started({error, R}) -> #{error => reason(R)}.

final(none) ->
    #{root => not_started};
final(Root) ->
    case is_process_alive(Root) of
        true -> #{root => alive, tree => tree(Root)};
        false -> #{root => dead, reason => get(reason)}
    end.

tree(Supervisor) ->
    [
        case C of
            {_, Pid, supervisor, _} when is_pid(Pid) -> (info(C))#{children => tree(Pid)};
            _ -> info(C)
        end
     || C <- lists:reverse(supervisor:which_children(Supervisor))
    ].

info({Id, Child, Type, _}) ->
    #{id => case Id of undefined -> null; _ -> Id end, child => label(Child), type => Type}.

label(undefined) -> null;
label(restarting) -> restarting;
label(Pid) ->
    {Id, N} = ask({label, Pid}),
    iolist_to_binary(io_lib:format("~s#~b", [Id, N])).

%% Wait until a process has ended; keep the root's reason.
gone(Pid) ->
    Ref = monitor(process, Pid),
    receive
        {'DOWN', Ref, _, _, _} -> ok
    after 10000 ->
        error({does_not_end, ask({label, Pid})})
    end.

%% Wait until every living supervisor answers and nobody whom it lists is on the way.
settle() ->
    case get(root) of
        none ->
            ok;
        Root ->
            case walk(Root) of
                busy -> timer:sleep(1), settle();
                dead -> [gone(Pid) || Pid <- ask(pids)], put(reason, root_reason());
                Seen ->
                    [catch gen_server:call(P, ping) || {P, worker} <- Seen],
                    case walk(Root) of Seen -> ok; _ -> settle() end
            end
    end.

root_reason() ->
    {Reasons, Rest} = lists:foldl(
        fun(E, {Rs, Es}) ->
            case E of
                #{ev := exit, id := root, reason := R} -> {[R | Rs], [E | Es]};
                _ -> {Rs, [E | Es]}
            end
        end,
        {[], []},
        ask(take)
    ),
    [ask({event, E}) || E <- lists:reverse(Rest)],
    hd(Reasons).

walk(Supervisor) ->
    try supervisor:which_children(Supervisor) of
        Children -> walk(Children, [{Supervisor, supervisor}])
    catch
        exit:_ -> dead
    end.

walk([], Seen) -> Seen;
walk([{_, restarting, _, _} | _], _) -> busy;
walk([{_, undefined, _, _} | Rest], Seen) -> walk(Rest, Seen);
walk([{_, Pid, Type, _} | Rest], Seen) ->
    case is_process_alive(Pid) of
        false -> busy;
        true when Type =:= worker -> walk(Rest, [{Pid, worker} | Seen]);
        true ->
            case walk(Pid) of
                Below when is_list(Below) -> walk(Rest, Below ++ Seen);
                _ -> busy
            end
    end.

%% -- bare processes -------------------------------------------------------------------------------

play_processes(Steps) ->
    {ok, Groups} = pg:start_link(),
    put(pids, #{}),
    put(monitors, #{}),
    put(servers, []),
    Traces = [begin R = process(maps:get(op, S), S), quiet(), trace(S, R) end || S <- Steps],
    [begin exit(Pid, kill), gone(Pid) end || Pid <- maps:values(get(pids))],
    unlink(Groups),
    gen_server:stop(Groups),
    #{steps => Traces}.

trace(#{op := Op}, untouched) -> #{op => Op, result => untouched};
trace(#{op := Op}, Result) -> #{op => Op, result => term(Result)}.

bare(Inbox) ->
    receive
        {do, From, Ref, Fun} -> From ! {Ref, catch Fun()}, bare(Inbox);
        {inbox, From, Ref} -> From ! {Ref, lists:reverse(Inbox)}, bare([]);
        {die, exit, R} -> exit(R);
        {die, error, R} -> error(R);
        Message -> bare([Message | Inbox])
    end.

born(Id, Pid) -> put(pids, (get(pids))#{Id => Pid}), ok.

pid(Id) -> maps:get(Id, get(pids), none).

alive(Id) -> is_pid(pid(Id)) andalso is_process_alive(pid(Id)).

server(Id, Fun) -> case pid(Id) of none -> untouched; Pid -> Fun(Pid) end.

%% Have a process do something; a dead one does nothing.
by(Id, Fun) -> case alive(Id) of true -> sync(pid(Id), {do, Fun}); false -> untouched end.

sync(Pid, Request) ->
    Ref = monitor(process, Pid),
    Pid ! case Request of {do, Fun} -> {do, self(), Ref, Fun}; inbox -> {inbox, self(), Ref} end,
    receive
        {Ref, Answer} -> demonitor(Ref, [flush]), Answer;
        {'DOWN', Ref, _, _, R} -> {died, R}
    end.

process(spawn, #{id := Id, trap := Trap}) ->
    Pid = spawn(fun() -> process_flag(trap_exit, Trap), bare([]) end),
    sync(Pid, {do, fun() -> ok end}),
    born(Id, Pid);
process(spawn_link, #{by := By, id := Id}) ->
    case by(By, fun() -> spawn_link(fun() -> bare([]) end) end) of
        Pid when is_pid(Pid) -> born(Id, Pid);
        untouched -> untouched
    end;
process(alive, #{id := Id}) ->
    case pid(Id) of none -> untouched; _ -> alive(Id) end;
process(inbox, #{id := Id}) ->
    case alive(Id) of true -> sync(pid(Id), inbox); false -> untouched end;
process(exit, #{id := Id, how := How, reason := Reason}) ->
    case alive(Id) of
        false ->
            untouched;
        true ->
            Ref = monitor(process, pid(Id)),
            pid(Id) ! {die, How, Reason},
            receive {'DOWN', Ref, _, _, R} -> {exited, R} end
    end;
process(trap, #{id := Id, value := Value}) ->
    by(Id, fun() -> process_flag(trap_exit, Value) end);
process(signal, #{by := By, target := Id, reason := Reason}) ->
    Send = fun(Pid) ->
        case by(By, fun() -> exit(Pid, Reason), ok end) of
            {died, _} -> ok;  % its own signal was faster than the answer
            Answer -> Answer
        end
    end,
    with(Id, Send, By);
process(link, #{by := By, target := Id}) ->
    with(Id, fun(Pid) -> by(By, fun() -> link(Pid) end) end, By);
process(unlink, #{by := By, target := Id}) ->
    with(Id, fun(Pid) -> by(By, fun() -> unlink(Pid) end) end, By);
process(monitor, #{by := By, as := As} = Step) ->
    Watch = fun(Target) ->
        case by(By, fun() -> monitor(process, Target) end) of
            untouched -> untouched;
            Ref -> put(monitors, (get(monitors))#{As => Ref}), ok
        end
    end,
    case Step of
        #{name := Name} -> Watch(Name);
        #{target := Id} -> with(Id, Watch, By)
    end;
process(demonitor, #{by := By, as := As}) ->
    case get(monitors) of
        #{As := Ref} -> by(By, fun() -> demonitor(Ref, [flush]) end);
        _ -> untouched
    end;
process(register, #{name := Name, id := Id}) ->
    with(Id, fun(Pid) -> try register(Name, Pid) catch error:badarg -> {error, badarg} end end, Id);
process(unregister, #{name := Name}) ->
    try unregister(Name) catch error:badarg -> {error, badarg} end;
process(whereis, #{name := Name}) ->
    whereis(Name);
process(send, #{by := By, msg := Text} = Step) ->
    Send = fun(Target) ->
        by(By, fun() ->
            try Target ! {msg, Text}, ok catch error:badarg -> {raise, badarg} end
        end)
    end,
    case Step of
        #{name := Name} -> Send(Name);
        #{to := Id} -> with(Id, Send, By)
    end;
process(pg_join, #{group := Group, id := Id}) ->
    case alive(Id) of true -> pg:join(Group, pid(Id)); false -> untouched end;
process(pg_leave, #{group := Group, id := Id}) ->
    with(Id, fun(Pid) -> pg:leave(Group, Pid) end, Id);
process(gs_start, #{id := Id, init := Init}) ->
    case gen_server:start(?MODULE, {server, Init}, []) of
        {ok, Pid} -> put(servers, [Id | get(servers)]), born(Id, Pid);
        Other -> Other
    end;
process(gs_stop, #{id := Id, reason := Reason}) ->
    server(Id, fun(Pid) ->
        try gen_server:stop(Pid, Reason, 5000) catch exit:R -> {caller_raises, exit, R} end
    end);
process(call, #{by := By, to := Id, req := Req, timeout := Timeout}) ->
    Call = fun(Pid) ->
        try {reply, gen_server:call(Pid, Req, Timeout)}
        catch
            exit:{{calling_self, _}, _} -> {caller_raises, exit, calling_self};
            exit:{R, _} -> {caller_raises, exit, R}
        end
    end,
    server(Id, fun(Pid) -> by(By, fun() -> Call(Pid) end) end);
process(cast, #{to := Id, req := Req}) ->
    server(Id, fun(Pid) -> gen_server:cast(Pid, Req) end);
process(info, #{to := Id, req := Req}) ->
    server(Id, fun(Pid) -> Pid ! Req, ok end);
process(seen, #{id := Id}) ->
    case alive(Id) of true -> gen_server:call(pid(Id), seen); false -> untouched end;
process(get_state, #{id := Id}) ->
    case alive(Id) of
        true -> {server, Notes} = sys:get_state(pid(Id)), lists:reverse(Notes);
        false -> untouched
    end;
process(suspend, #{id := Id}) ->
    case alive(Id) of true -> sys:suspend(pid(Id)); false -> untouched end;
process(resume, #{id := Id}) ->
    case alive(Id) of true -> sys:resume(pid(Id)); false -> untouched end;
process(mf, #{mod := Module, fn := Function, by := By, args := Args}) ->
    by(By, fun() -> try apply(Module, Function, Args) catch error:R -> #{raise => R} end end);
process(pg_members, #{group := Group}) ->
    pg:get_members(Group).

with(Id, Fun, By) ->
    case {pid(Id), pid(By)} of
        {Pid, Other} when is_pid(Pid), is_pid(Other) -> Fun(Pid);
        _ -> untouched
    end.

%% Wait until all have looked at what they have, and nobody has ended meanwhile.
quiet() ->
    Living = [Id || Id <- maps:keys(get(pids)), alive(Id)],
    Servers = get(servers),
    [
        case lists:member(Id, Servers) of
            true -> catch sys:get_state(pid(Id));
            false -> sync(pid(Id), {do, fun() -> ok end})
        end
     || Id <- Living
    ],
    sys:get_state(pg),
    case [Id || Id <- Living, alive(Id)] of Living -> ok; _ -> quiet() end.

term({'DOWN', Ref, process, {Name, _}, R}) -> term({'DOWN', Ref, process, Name, R});
term({exited, R}) -> #{exited => term(R)};
term({'EXIT', {R, [{_, _, _, _} | _]}}) -> #{t => [term('EXIT'), term({R, [{a, b, c, d}]})]};
term({R, [{_, _, _, _} | _]}) -> #{t => [term(R), #{a => stacktrace}]};
term(Pid) when is_pid(Pid) ->
    [Id] = [I || {I, P} <- maps:to_list(get(pids)), P =:= Pid],
    #{p => Id};
term(Ref) when is_reference(Ref) ->
    [As] = [A || {A, R} <- maps:to_list(get(monitors)), R =:= Ref],
    #{v => As};
term(#{raise := R}) -> #{raise => term(R)};
term(Plain) when is_boolean(Plain); is_number(Plain); is_binary(Plain) -> Plain;
term(Atom) when is_atom(Atom) -> #{a => Atom};
term(List) when is_list(List) -> [term(Item) || Item <- List];
term(Tuple) when is_tuple(Tuple) -> #{t => [term(Item) || Item <- tuple_to_list(Tuple)]}.

%% -- terms ----------------------------------------------------------------------------------------

to_reason(#{shutdown := R}) -> {shutdown, to_reason(R)};
to_reason(R) -> R.

reason({failed_to_start_child, Id, R}) -> #{failed_to_start_child => Id, reason => reason(R)};
reason({shutdown, R}) -> #{shutdown => reason(R)};
reason({R, [{_, _, _, _} | _]}) -> #{crash => reason(R)};
reason({bad_start_spec, Specs}) -> #{bad_start_spec => [#{id => Id} || #{id := Id} <- Specs]};
reason({bad_combination, Pairs}) -> #{bad_combination => maps:from_list(Pairs)};
reason({Code, R}) -> #{Code => reason(R)};
reason(R) -> R.

json(Map) when is_map(Map) ->
    Items = [[json(K), $:, json(V)] || {K, V} <- maps:to_list(Map)],
    [${, lists:join($,, Items), $}];
json(List) when is_list(List) -> [$[, lists:join($,, [json(I) || I <- List]), $]];
json(N) when is_integer(N) -> integer_to_binary(N);
json(F) when is_float(F) -> io_lib:format("~p", [F]);
json(B) when is_binary(B) -> [$", B, $"];
json(A) when A =:= true; A =:= false; A =:= null -> atom_to_binary(A);
json(A) when is_atom(A) -> [$", atom_to_binary(A), $"].
